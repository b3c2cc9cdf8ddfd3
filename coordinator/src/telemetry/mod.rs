//! Reports about the coordinator and the jobs: Prometheus metrics, OpenTelemetry.

pub(crate) mod export;
pub(crate) mod metrics;
#[cfg(feature = "otlp")]
mod otlp;
