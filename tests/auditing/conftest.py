from bundle_fixtures import arrays, artifact, exported, made_artifact

__all__ = ["arrays", "artifact", "exported", "made_artifact"]
