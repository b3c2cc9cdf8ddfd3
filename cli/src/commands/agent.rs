//! `memtape agent`: the service that runs once per node.

use memtape_agent::Config;
use serde_json::json;

use crate::args::AgentArgs;
use crate::{Mistakes, output};

use super::service;

/// Runs the agent until it is asked to stop.
///
/// # Errors
/// Settings that make no sense, all of them at once.
pub(crate) fn run(args: AgentArgs, coordinator: &str, json: bool) -> anyhow::Result<()> {
    let config = config(args, coordinator);
    let mistakes = config.mistakes();
    if !mistakes.is_empty() {
        return Err(Mistakes(mistakes).into());
    }
    service::log(json)?;
    if json {
        output::print_json(&json!({
            "node": config.node, "coordinator": config.coordinator, "tape_dirs": config.tape_dirs,
        }))?;
    }
    service::block_on(async move { Ok(memtape_agent::run(config, service::shutdown()?).await?) })
}

fn config(args: AgentArgs, coordinator: &str) -> Config {
    let default = Config::default();
    let spool_bytes_max = args.spool_bytes_max.unwrap_or(default.spool_bytes_max);
    let spool_dir = args.spool_dir.or(default.spool_dir.clone());
    Config {
        spool_dir: spool_dir.filter(|_| spool_bytes_max > 0),
        spool_bytes_max,
        node: args.node.unwrap_or(default.node),
        coordinator: coordinator.to_string(),
        tape_dirs: if args.tape_dirs.is_empty() { default.tape_dirs } else { args.tape_dirs },
        report_interval: args.report_interval.unwrap_or(default.report_interval),
        dead_tape_bytes_max: args.dead_tape_bytes_max.unwrap_or(default.dead_tape_bytes_max),
        dead_tape_age_max: args.dead_tape_age_max.unwrap_or(default.dead_tape_age_max),
        ..default
    }
}
