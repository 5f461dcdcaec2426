from bundle_fixtures import app, arrays, artifact, exported, made_artifact, made_bundle

__all__ = ["app", "arrays", "artifact", "exported", "made_artifact", "made_bundle"]
