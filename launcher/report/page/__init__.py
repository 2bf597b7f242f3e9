"""Records of runs -> one HTML page that needs nothing beside itself."""
