//! `memtape policy`: what the coordinator would do about a job, and the approval of a restart; and
//! a check of a policy file, without a coordinator.

use std::path::PathBuf;

use memtape_core::diagnosis::plural;
use memtape_proto::api::{Approved, ExplainedIncident, ExplainedPolicy};
use serde_json::json;

use crate::client::parse;
use crate::client::unknown::of_id;
use crate::commands::queries::names::OneJob;
use crate::globals::Globals;
use crate::output;
use crate::policy_file;

/// `memtape policy`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum PolicyCommand {
    /// Show what would be done about a job now, and why.
    Explain(ExplainArgs),
    /// Approve a restart because of an incident, where the policy asks for a person.
    Approve(ApproveArgs),
    /// Check a policy file.
    Check(CheckArgs),
}

/// `memtape policy explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) job: OneJob,
}

/// `memtape policy approve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ApproveArgs {
    /// The incident (inc-…). The approval holds for an hour.
    #[arg(value_name = "INCIDENT")]
    pub(crate) incident: String,
}

/// `memtape policy check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The file, as `memtape coordinator --policy` takes it.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Explains, approves or checks.
/// Fails when the coordinator does not answer or refuses, and when the file is wrong.
pub(crate) fn run(command: &PolicyCommand, globals: &Globals) -> anyhow::Result<()> {
    match command {
        PolicyCommand::Explain(args) => {
            let client = globals.client()?;
            let job = args.job.find(&client)?;
            let answer = client.get(&["jobs", &job, "policy"], &[])?;
            if globals.json {
                return output::print_json(&answer);
            }
            output::print(&explained(&parse(&answer)?))
        }
        PolicyCommand::Approve(args) => {
            let client = globals.client()?;
            let answer = client.post(&["incidents", &args.incident, "approve"], &());
            let answer =
                answer.map_err(|error| of_id(error, &client, "incidents", &args.incident))?;
            if globals.json {
                return output::print_json(&answer);
            }
            let Approved { incident_id, is_needed } = parse(&answer)?;
            let said = match is_needed {
                true => format!("a restart because of {incident_id} is approved for an hour"),
                false => format!(
                    "{incident_id} needs no approval: `memtape policy explain` says what the \
                     policy does about it"
                ),
            };
            output::print(&said)
        }
        PolicyCommand::Check(args) => {
            let settings = policy_file::read(&args.file)?;
            let rules = settings.rules.len();
            if globals.json {
                return output::print_json(&json!({ "rules": rules }));
            }
            let rules = plural(rules as u64, "rule");
            output::print(&format!("{} is sound: {rules}", args.file.display()))
        }
    }
}

fn explained(policy: &ExplainedPolicy) -> String {
    if policy.incidents.is_empty() {
        return format!("{}: no open incident, so that nothing is done", policy.job);
    }
    let mut incidents: Vec<String> = policy.incidents.iter().map(incident).collect();
    if policy.left_out > 0 {
        incidents.push(format!("{} more are not shown", plural(policy.left_out, "incident")));
    }
    incidents.join("\n\n")
}

fn incident(incident: &ExplainedIncident) -> String {
    let ExplainedIncident { incident_id, class, rule_line, mode, decision, remedies } = incident;
    let rule = match rule_line {
        Some(line) => format!("the rule in line {line}"),
        None => "no rule".to_string(),
    };
    let mut lines = vec![
        format!("{incident_id} ({class}): mode {mode}, by {rule}"),
        format!("  now: {decision}"),
    ];
    lines.extend(remedies.iter().map(|of| match of.objection.as_str() {
        "" => format!("  {:<12} no objection", of.remedy),
        objection => format!("  {:<12} {objection}", of.remedy),
    }));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use memtape_proto::api::ExplainedRemedy;

    use super::*;

    #[test]
    fn an_explanation_has_the_rule_the_decision_and_every_remedy() {
        let remedy = |remedy: &str, objection: &str| ExplainedRemedy {
            remedy: remedy.to_string(),
            objection: objection.to_string(),
        };
        let incident = ExplainedIncident {
            incident_id: "inc-1".to_string(),
            class: "leak".to_string(),
            rule_line: Some(7),
            mode: "act".to_string(),
            decision: "restart: leak (inc-1)".to_string(),
            remedies: vec![remedy("gc", "not offered"), remedy("restart", "")],
        };
        let policy =
            ExplainedPolicy { job: "job".to_string(), incidents: vec![incident], left_out: 0 };
        let expected = [
            "inc-1 (leak): mode act, by the rule in line 7",
            "  now: restart: leak (inc-1)",
            "  gc           not offered",
            "  restart      no objection",
        ];
        assert_eq!(explained(&policy), expected.join("\n"));
        let calm = ExplainedPolicy { job: "job".to_string(), ..ExplainedPolicy::default() };
        assert_eq!(explained(&calm), "job: no open incident, so that nothing is done");
    }
}
