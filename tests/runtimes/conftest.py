from pretended_engine import device, engine

__all__ = ["device", "engine"]
