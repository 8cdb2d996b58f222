"""The version, without imports: ``setup.py`` and the command ``ctxgates`` run this file."""

__version__ = "0.1.0"
