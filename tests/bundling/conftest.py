from bundle_fixtures import app, arrays, artifact, cache, exported, made_artifact, made_bundle, model

__all__ = ["app", "arrays", "artifact", "cache", "exported", "made_artifact", "made_bundle", "model"]
