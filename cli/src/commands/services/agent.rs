//! `memtape agent`: the service that runs once per node.

use memtape_agent::Config;
use serde_json::json;

use crate::args::Mistakes;
use crate::globals::Globals;
use crate::output;
use crate::runtime;

/// Runs the agent until Ctrl-C or SIGTERM.
/// Fails with all invalid settings at once, or with the service's own error.
pub(crate) fn run(config: Config, globals: &Globals) -> anyhow::Result<()> {
    let json = globals.json;
    let (coordinator, tls_dir) = (globals.coordinator_urls()?.join(","), globals.tls_dir.clone());
    let config = Config { coordinator, tls_dir, ..config };
    let mistakes = config.mistakes();
    if !mistakes.is_empty() {
        return Err(Mistakes(mistakes).into());
    }
    runtime::log(json)?;
    if json {
        output::print_json(&json!({
            "node": config.node, "coordinator": config.coordinator, "tape_dirs": config.tape_dirs,
        }))?;
    }
    runtime::block_on(async move { Ok(memtape_agent::run(config, runtime::shutdown()?).await?) })
}
