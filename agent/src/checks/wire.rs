//! The messages of NVRx' health check, and the service that answers them.
//!
//! The client gives a node up whose `success` is false, and prints `exit_code`, `output` and
//! `error`. A node with `success` needs an `output` whose `fail_count` is 0. What is not known is
//! healthy there, and `verdict` and `details` say so. What a request asks for is ignored: its
//! options are those of NVIDIA's own service.

use memtape_core::limits::NODE_CHECK_REQUEST_BYTES_MAX;
use memtape_core::policy::node_check::Verdict;
use memtape_proto::nvhcd::health_check_service_server::{
    HealthCheckService, HealthCheckServiceServer,
};
use memtape_proto::nvhcd::{HealthCheckRequest, HealthCheckResponse};
use serde::Serialize;
use tonic::{Request, Response, Status};

use crate::checks::gpu_memory::Answer;

/// The name of the check in `failed_checks`.
const CHECK: &str = "gpu_memory";

/// Where answers come from.
pub(super) trait Ask: Send + Sync + 'static {
    /// Asks, and waits for the answer; none when there is nothing to answer it.
    fn ask(&self) -> impl Future<Output = Option<Answer>> + Send;
}

/// The service.
#[derive(Debug)]
struct Service<A>(A);

/// The object in `output`.
#[derive(Debug, Serialize)]
struct Output<'a> {
    fail_count: u32,
    failed_checks: &'a [&'a str],
    verdict: &'a str,
    details: &'a [String],
}

/// The service for a server, with a bound on its requests.
pub(super) fn server<A: Ask>(
    ask: A,
) -> impl tonic::codegen::Service<
    hyper::Request<hyper::body::Incoming>,
    Response = hyper::Response<tonic::body::Body>,
    Error = std::convert::Infallible,
    Future: Send + 'static,
> + Clone
+ Send
+ Sync
+ 'static {
    HealthCheckServiceServer::new(Service(ask))
        .max_decoding_message_size(NODE_CHECK_REQUEST_BYTES_MAX)
}

#[tonic::async_trait]
impl<A: Ask> HealthCheckService for Service<A> {
    async fn run_health_check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let answer = self.0.ask().await;
        let answer = answer.ok_or_else(|| Status::unavailable("the agent stops"))?;
        Ok(Response::new(response(&answer)))
    }
}

fn response(answer: &Answer) -> HealthCheckResponse {
    let (success, verdict) = match answer.verdict {
        Verdict::Healthy => (true, "healthy"),
        Verdict::Failed => (false, "failed"),
        Verdict::Unknown => (true, "unknown"),
    };
    let failed_checks: &[&str] = if success { &[] } else { &[CHECK] };
    let output = Output {
        fail_count: u32::from(!success),
        failed_checks,
        verdict,
        details: &answer.details,
    };
    HealthCheckResponse {
        success,
        exit_code: i32::from(!success),
        // Texts and numbers are always JSON.
        output: serde_json::to_string(&output).unwrap_or_default(),
        error: String::new(),
    }
}

/// The client's part, for tests.
#[cfg(test)]
pub(super) mod client {
    use std::path::{Path, PathBuf};

    use hyper_util::rt::TokioIo;
    use memtape_proto::nvhcd::HealthCheckRequest;
    use memtape_proto::nvhcd::health_check_service_client::HealthCheckServiceClient;
    use tokio::net::UnixStream;
    use tonic::transport::{Channel, Endpoint, Uri};

    /// A connection of its own to a socket.
    pub(crate) fn channel(path: &Path) -> Channel {
        let path = path.to_path_buf();
        let connect = move |_: Uri| {
            let path: PathBuf = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        };
        Endpoint::from_static("http://socket")
            .connect_with_connector_lazy(tower::service_fn(connect))
    }

    /// Asks as NVRx does; whether the node may join, and the output.
    pub(crate) async fn ask(
        channel: Channel,
        args: &[&str],
    ) -> Result<(bool, serde_json::Value), tonic::Status> {
        let args = args.iter().map(ToString::to_string).collect();
        let request = HealthCheckRequest { args };
        let response = HealthCheckServiceClient::new(channel).run_health_check(request).await?;
        let response = response.into_inner();
        let output = serde_json::from_str(&response.output).expect("JSON");
        Ok((response.success, output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NVRx reads these fields; `nvidia_resiliency_ext/shared_utils/health_check.py`.
    #[test]
    fn nvrx_reads_each_verdict_as_it_is_meant() {
        for (verdict, joins, word) in [
            (Verdict::Healthy, true, "healthy"),
            (Verdict::Failed, false, "failed"),
            (Verdict::Unknown, true, "unknown"),
        ] {
            let answer = Answer { verdict, details: vec!["a \"quoted\" line".to_string()] };
            let response = response(&answer);
            let output: serde_json::Value = serde_json::from_str(&response.output).unwrap();
            let read = response.success && output["fail_count"] == 0;
            assert_eq!(read, joins, "{verdict:?}");
            assert_eq!((response.exit_code == 0, response.error.as_str()), (joins, ""));
            assert_eq!(output["failed_checks"].as_array().unwrap().is_empty(), joins);
            assert_eq!(output["verdict"], word);
            assert_eq!(output["details"][0], "a \"quoted\" line");
        }
    }
}
