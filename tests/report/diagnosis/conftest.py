"""The tiny model and the ranks that train it, as the tests of training have them."""

from tests.train.conftest import model_dir, ranks

__all__ = ["model_dir", "ranks"]
