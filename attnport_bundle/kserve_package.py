"""What is used of the package kserve.

KServe reads the command line of whoever imports it. Ray pickles gRPC's messages, by a module that they name wrongly.
"""

from __future__ import annotations

import sys

_ARGUMENTS, sys.argv = sys.argv, sys.argv[:1]
try:
    from kserve import InferOutput as InferOutput
    from kserve import InferRequest as InferRequest
    from kserve import InferResponse as InferResponse
    from kserve import Model as Model
    from kserve import ModelRepository as ModelRepository
    from kserve import ModelServer as ModelServer
    from kserve import model_server as model_server
    from kserve.errors import InferenceError as InferenceError
    from kserve.errors import InvalidInput as InvalidInput
    from kserve.errors import ModelNotFound as ModelNotFound
    from kserve.protocol.dataplane import DataPlane as DataPlane
    from kserve.protocol.grpc import grpc_predict_v2_pb2
    from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import (
        add_GRPCInferenceServiceServicer_to_server as add_GRPCInferenceServiceServicer_to_server,
    )
    from kserve.protocol.grpc.servicer import InferenceServicer as InferenceServicer
    from kserve.protocol.model_repository_extension import ModelRepositoryExtension as ModelRepositoryExtension
    from kserve.protocol.rest.v2_endpoints import register_v2_endpoints as register_v2_endpoints
    from kserve.utils.numpy_codec import to_np_dtype as to_np_dtype
finally:
    sys.argv = _ARGUMENTS
sys.modules.setdefault("grpc_predict_v2_pb2", grpc_predict_v2_pb2)
