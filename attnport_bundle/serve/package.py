"""What is used of the package kserve.

KServe reads the command line of whoever imports it. Ray pickles gRPC's messages, by a module that they name wrongly.
"""

from __future__ import annotations

import sys

_ARGUMENTS, sys.argv = sys.argv, sys.argv[:1]
try:
    from kserve import Model as Model
    from kserve import ModelRepository as ModelRepository
    from kserve.errors import InferenceError as InferenceError
    from kserve.errors import InvalidInput as InvalidInput
    from kserve.errors import ModelNotFound as ModelNotFound
    from kserve.protocol.dataplane import DataPlane as DataPlane
    from kserve.protocol.grpc import grpc_predict_v2_pb2
    from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import (
        add_GRPCInferenceServiceServicer_to_server as add_GRPCInferenceServiceServicer_to_server,
    )
    from kserve.protocol.grpc.interceptors import ExceptionToStatusInterceptor as ExceptionToStatusInterceptor
    from kserve.protocol.grpc.servicer import InferenceServicer as InferenceServicer
    from kserve.protocol.model_repository_extension import ModelRepositoryExtension as ModelRepositoryExtension
    from kserve.protocol.rest.server import metrics_handler as metrics_handler
    from kserve.protocol.rest.v2_endpoints import register_v2_endpoints as register_v2_endpoints
finally:
    sys.argv = _ARGUMENTS
ModelInferRequest = grpc_predict_v2_pb2.ModelInferRequest
ModelInferResponse = grpc_predict_v2_pb2.ModelInferResponse
sys.modules.setdefault("grpc_predict_v2_pb2", grpc_predict_v2_pb2)
