"""The service of NVRx 0.7's nvhcd.proto, for machines without NVRx."""

import grpc

from . import nvhcd_pb2


class HealthCheckServiceServicer:
    pass


class HealthCheckServiceStub:
    def __init__(self, channel):
        self.RunHealthCheck = channel.unary_unary(
            "/nvhcd.HealthCheckService/RunHealthCheck",
            request_serializer=nvhcd_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=nvhcd_pb2.HealthCheckResponse.FromString,
        )


def add_HealthCheckServiceServicer_to_server(servicer, server):
    handler = grpc.unary_unary_rpc_method_handler(
        servicer.RunHealthCheck,
        request_deserializer=nvhcd_pb2.HealthCheckRequest.FromString,
        response_serializer=nvhcd_pb2.HealthCheckResponse.SerializeToString,
    )
    service = "nvhcd.HealthCheckService"
    handlers = grpc.method_handlers_generic_handler(service, {"RunHealthCheck": handler})
    server.add_generic_rpc_handlers((handlers,))
