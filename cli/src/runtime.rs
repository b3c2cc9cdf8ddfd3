//! Shared parts of the two services: the async runtime, the log on stderr, and shutdown signals.

use std::future::Future;
use std::io::IsTerminal;

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// Runs a service on all cores until it ends.
/// Fails with the service's own error.
pub(crate) fn block_on(service: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    threads()?.block_on(service)
}

/// A runtime on all cores.
/// Fails when threads cannot be started.
pub(crate) fn threads() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().context("cannot start threads")
}

/// Ready when this process receives Ctrl-C or SIGTERM.
/// Fails when signals cannot be watched.
pub(crate) fn shutdown() -> anyhow::Result<impl Future<Output = ()> + Send> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch signals")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Calls `act` when the process receives Ctrl-C or SIGTERM, on a thread of its own.
pub(crate) fn at_signal(act: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            if let Ok(signal) = shutdown() {
                signal.await;
                act();
            }
        });
    });
}

/// Targets that are not logged unless `MEMTAPE_LOG` names them. The store itself reports damage and
/// full disks, so sled's own messages are not needed.
const QUIET: &str = "sled=off,slatedb=off,object_store=off";

/// The log filter of `MEMTAPE_LOG`.
/// Fails when `MEMTAPE_LOG` is not a filter.
pub(crate) fn log_filter() -> anyhow::Result<Targets> {
    filter(&std::env::var("MEMTAPE_LOG").unwrap_or_default())
}

fn filter(text: &str) -> anyhow::Result<Targets> {
    let text = if text.trim().is_empty() { "info" } else { text.trim() };
    // Of two directives for one target, the later one applies.
    format!("{QUIET},{text}").parse().map_err(|_| {
        let line = format!("MEMTAPE_LOG is {text:?}: set it to info, debug or memtape_agent=debug");
        crate::args::Mistakes::one(line).into()
    })
}

/// Logs to stderr from now on, as lines of text or, with `--json`, of JSON.
/// Fails as [`log_filter`] does.
pub(crate) fn log(json: bool) -> anyhow::Result<()> {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    let lines = if json { lines.json().boxed() } else { lines.with_target(false).boxed() };
    tracing_subscriber::registry().with(lines.with_filter(log_filter()?)).init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_quiet_unless_they_are_asked_for() {
        let directives = |text: &str| {
            let shown = filter(text).expect(text).to_string();
            let mut directives: Vec<String> = shown.split(',').map(str::to_string).collect();
            directives.sort();
            directives
        };
        assert_eq!(directives(""), ["info", "object_store=off", "slatedb=off", "sled=off"]);
        assert_eq!(directives("debug"), ["debug", "object_store=off", "slatedb=off", "sled=off"]);
        assert_eq!(
            directives("info,sled=warn"),
            ["info", "object_store=off", "slatedb=off", "sled=warn"]
        );
        assert!(filter("memtape_agent=loud").is_err());
    }
}
