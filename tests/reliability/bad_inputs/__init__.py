"""The bad inputs of ``test_bad_inputs.py``, by command."""
