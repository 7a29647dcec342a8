"""The tests; modules here that are no tests are shared by them."""
