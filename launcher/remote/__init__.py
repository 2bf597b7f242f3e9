"""Host -> an open session to it. Nothing above this layer knows how a node is reached."""
