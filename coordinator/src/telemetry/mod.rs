//! What the coordinator reports about itself and the jobs: Prometheus metrics, OpenTelemetry.

pub(crate) mod export;
pub(crate) mod metrics;
#[cfg(feature = "otlp")]
mod otlp;
