"""The client of NVRx 0.7, as far as the test needs it, for machines without NVRx."""

import json
import logging

import grpc

from .proto import nvhcd_pb2, nvhcd_pb2_grpc

logger = logging.getLogger(__name__)


class NodeHealthCheck:
    def __init__(self, endpoint):
        self.endpoint = endpoint

    def __call__(self):
        args = ["--no-slurm", "--group", "prolog", "epilog", "logs", "gpu"]
        try:
            with grpc.insecure_channel(f"unix://{self.endpoint}") as channel:
                stub = nvhcd_pb2_grpc.HealthCheckServiceStub(channel)
                response = stub.RunHealthCheck(nvhcd_pb2.HealthCheckRequest(args=args), timeout=60)
        except grpc.RpcError as error:
            logger.debug("Node health check unavailable: %s", error)
            return True
        if not response.success:
            logger.warning(
                f"Node health check failed (exit_code={response.exit_code}). "
                f"Output: {response.output}"
            )
            return False
        count = json.loads(response.output)["fail_count"]
        logger.debug(f"Node health check success (fail_count={count})")
        return count == 0
