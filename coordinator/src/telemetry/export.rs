//! Traces and metrics of the coordinator itself, over OTLP, when an endpoint is configured.
//!
//! A capture is a span with one child for each rank, written when it is closed, so that the skew
//! between ranks is seen in any trace viewer; uploads are spans of their own. Without an endpoint
//! nothing of this exists. Logs go through `tracing`, whose subscriber the program sets up.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use memtape_core::capture::Part;

use crate::state::counters::Counters;
#[cfg(feature = "otlp")]
use crate::telemetry::otlp;
use memtape_disk::clock;
use memtape_store::records::CaptureRecord;

/// Children of one capture; of a larger one the ranks that are not aligned come first.
const CHILDREN_MAX: usize = 512;

/// Exporters of traces and metrics, if any.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    exporters: Option<Exporters>,
}

#[derive(Debug)]
pub(super) struct Exporters {
    pub(super) traces: SdkTracerProvider,
    pub(super) tracer: SdkTracer,
    pub(super) metrics: SdkMeterProvider,
}

impl Telemetry {
    /// Connects when it is first used; an endpoint that is not there costs nothing but a log line
    /// of the exporter.
    ///
    /// # Errors
    /// An endpoint that makes no sense.
    pub(crate) fn start(endpoint: Option<&str>, counters: &Arc<Counters>) -> anyhow::Result<Self> {
        let Some(endpoint) = endpoint else { return Ok(Self::default()) };
        #[cfg(feature = "otlp")]
        let exporters = otlp::exporters(endpoint, counters);
        #[cfg(not(feature = "otlp"))]
        let (_, exporters) = (counters, Err(anyhow::anyhow!(not_built!("OTLP"))));
        let wrong = || format!("the OTLP endpoint {endpoint} cannot be used");
        Ok(Self { exporters: Some(exporters.with_context(wrong)?) })
    }

    /// Exports a closed capture.
    pub(crate) fn capture(&self, record: &CaptureRecord, parts: &[Part]) {
        let Some(Exporters { tracer, .. }) = &self.exporters else { return };
        let begin = system_time(record.requested_wall_ns);
        let end = system_time(record.closed_wall_ns.unwrap_or(record.requested_wall_ns));
        let builder = SpanBuilder::from_name("capture")
            .with_kind(SpanKind::Internal)
            .with_start_time(begin)
            .with_attributes([
                KeyValue::new("memtape.capture.id", record.id.clone()),
                KeyValue::new("memtape.job.id", record.job.clone()),
                KeyValue::new("memtape.attempt", i64::from(record.attempt)),
                KeyValue::new("memtape.capture.reason", record.reason.as_str()),
                KeyValue::new("memtape.step", number(record.step)),
                KeyValue::new("memtape.ranks", number(parts.len() as u64)),
            ]);
        let mut span = tracer.build_with_context(builder, &Context::new());
        if !record.complete {
            span.set_status(Status::error("partial"));
        }
        let context = Context::new().with_span(span);
        let aligned = parts.iter().filter(|part| part.is_aligned());
        let missing = parts.iter().filter(|part| !part.is_aligned());
        for part in missing.chain(aligned).take(CHILDREN_MAX) {
            // A part's span shows the time in training that it is of: from the end of
            // its step to the end of the capture.
            let shown = system_time(part.wall_ns).clamp(UNIX_EPOCH, end);
            let child = SpanBuilder::from_name("capture rank")
                .with_start_time(if part.wall_ns > 0 { shown } else { begin })
                .with_attributes([
                    KeyValue::new("memtape.rank", i64::from(part.rank)),
                    KeyValue::new("host.name", part.node.clone()),
                    KeyValue::new("memtape.capture.outcome", part.outcome.as_str()),
                    KeyValue::new("memtape.step", number(part.step)),
                    KeyValue::new("memtape.snapshot.bytes", number(part.bytes)),
                ]);
            let mut child = tracer.build_with_context(child, &context);
            if !part.is_aligned() {
                child.set_status(Status::error(part.detail.clone()));
            }
            child.end_with_timestamp(end);
        }
        context.span().end_with_timestamp(end);
    }

    /// Exports a piece of work that began at this time and is over now.
    pub(crate) fn work(
        &self,
        name: &'static str,
        begin: clock::Now,
        failure: Option<&str>,
        attributes: impl IntoIterator<Item = KeyValue>,
    ) {
        let Some(Exporters { tracer, .. }) = &self.exporters else { return };
        let builder = SpanBuilder::from_name(name)
            .with_start_time(system_time(begin.wall_ns))
            .with_attributes(attributes);
        let mut span = tracer.build_with_context(builder, &Context::new());
        if let Some(why) = failure {
            span.set_status(Status::error(why.to_string()));
        }
        span.end_with_timestamp(system_time(clock::now().wall_ns));
    }

    /// Sends what waits. Blocks, for a few seconds at most.
    pub(crate) fn stop(&self) {
        if let Some(exporters) = &self.exporters {
            // What cannot be sent at the end is not worth an error.
            let _ = exporters.traces.shutdown_with_timeout(Duration::from_secs(2));
            let _ = exporters.metrics.shutdown_with_timeout(Duration::from_secs(2));
        }
    }
}

fn system_time(wall_ns: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(u64::try_from(wall_ns).unwrap_or(0))
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
