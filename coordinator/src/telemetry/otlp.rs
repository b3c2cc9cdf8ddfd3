//! The exporters of traces and metrics, over OTLP. Built with the feature `otlp` alone.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;

use crate::state::counters::{Count, Counters};
use crate::telemetry::export::Exporters;

/// Time between two exports of metrics.
const METRICS_EVERY: Duration = Duration::from_secs(15);

/// Connects to the endpoint when it is first used.
///
/// # Errors
/// The endpoint makes no sense.
pub(super) fn exporters(endpoint: &str, counters: &Arc<Counters>) -> anyhow::Result<Exporters> {
    let resource = Resource::builder()
        .with_service_name("memtape-coordinator")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    let spans = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
    let traces = SdkTracerProvider::builder()
        .with_batch_exporter(spans)
        .with_resource(resource.clone())
        .build();
    let exporter = MetricExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
    let reader = PeriodicReader::builder(exporter).with_interval(METRICS_EVERY).build();
    let metrics = SdkMeterProvider::builder().with_reader(reader).with_resource(resource).build();
    observe(&metrics, counters);
    let tracer = traces.tracer("memtape");
    Ok(Exporters { traces, tracer, metrics })
}

fn observe(provider: &SdkMeterProvider, counters: &Arc<Counters>) {
    let meter = provider.meter("memtape");
    type Read = fn(&Counters) -> u64;
    let sums: [(&'static str, Read); 6] = [
        ("memtape.reports", |counters| counters.get(Count::Reports)),
        ("memtape.steps", |counters| counters.get(Count::Steps)),
        ("memtape.incidents", |counters| counters.get(Count::Incidents)),
        ("memtape.captures", |counters| {
            counters.get(Count::CapturesComplete) + counters.get(Count::CapturesPartial)
        }),
        ("memtape.captures.partial", |counters| counters.get(Count::CapturesPartial)),
        ("memtape.snapshot.bytes", |counters| counters.get(Count::SnapshotBytes)),
    ];
    for (name, read) in sums {
        let counters = counters.clone();
        let observe = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
            observer.observe(read(&counters), &[]);
        };
        meter.u64_observable_counter(name).with_callback(observe).build();
    }
    let counters = counters.clone();
    let losses = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<u64>| {
        for (reason, count) in counters.losses() {
            observer.observe(count, &[KeyValue::new("reason", reason)]);
        }
    };
    meter.u64_observable_counter("memtape.losses").with_callback(losses).build();
}
