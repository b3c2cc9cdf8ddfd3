//! A tape as JSON.

use std::collections::BTreeMap;
use std::path::Path;

use memtape_core::diagnosis::Churn;
use memtape_core::tape::StepRecord;
use memtape_core::tape::read::DeviceTotals;
use memtape_core::tape::rewind::PointInTime;
use memtape_proto::api::{Ledger, RankCollectives};
use serde_json::{Value, json};

use super::{LiveStack, Summary, frames, live_stacks};
use crate::read::tape_file;
use crate::render::ledger;

impl Summary {
    fn marks_json(&self) -> Vec<Value> {
        let marks = self.tape.marks(self.last).into_iter();
        let json = marks.map(|mark| {
            let wall_ns = self.tape.wall_ns(mark.mono_ns);
            json!({ "step": mark.step, "wall_ns": wall_ns, "text": mark.text })
        });
        json.collect()
    }

    /// The whole tape.
    pub(crate) fn to_json(&self, path: &Path) -> Value {
        let identity = self.tape.identity();
        let devices: Vec<Value> = self.totals.iter().map(|of| self.device_json(of)).collect();
        let losses: BTreeMap<&str, u64> =
            self.status.losses.iter().map(|&(loss, count)| (loss.as_str(), count)).collect();
        json!({
            "file": path, "tape_id": identity.tape_id, "job": identity.job,
            "attempt": identity.attempt, "rank": identity.rank, "world_size": identity.world_size,
            "local_rank": identity.local_rank, "host": identity.host, "pid": identity.pid,
            "command": identity.command, "alive": self.writer.is_alive(),
            "sealed": self.status.sealed,
            "process": tape_file::process(self.writer, &self.status), "moment": self.when(),
            "exit_status": self.status.exit_status, "disabled": self.status.disabled,
            "limitations": self.status.limitations, "lost": self.status.lost, "losses": losses,
            "step": self.status.step, "clock": Into::<&str>::into(self.status.clock),
            "oldest_step": self.tape.oldest_step(),
            "start_wall_ns": self.status.start_wall_ns,
            "collectives": RankCollectives::from(&self.tape.collectives()),
            "devices": devices, "phase": self.tape.phase(), "marks": self.marks_json(),
            "outside_missing": self.state.as_ref().ok().map(|state| state.outside_missing),
            "outside": self.state.as_ref().ok().map(|state| ledger::outside_json(&state.outside)),
            "outside_lines": self.state.as_ref().ok().map(ledger::lines_json),
            "stacks_at_step": match self.moment {
                PointInTime::EndOf(step) => json!(step),
                PointInTime::Present | PointInTime::LastOom => Value::Null,
            },
            "unreadable": self.state.as_ref().err().map(ToString::to_string),
        })
    }

    fn device_json(&self, totals: &DeviceTotals) -> Value {
        let step = |(r, change): &(StepRecord, Option<i64>)| {
            json!({
                "first_step": r.first_step, "last_step": r.last_step,
                "step_min_bytes": r.floor_allocated, "step_min_change_bytes": change,
                "peak_bytes": r.peak_allocated,
                "end_allocated": r.end_allocated, "end_reserved": r.end_reserved,
                "blocks": r.blocks, "end_wall_ns": r.end_wall_ns,
            })
        };
        let steps: Vec<Value> = self.last_steps(totals.device).iter().map(step).collect();
        let state = self.device(totals.device);
        let stacks: Vec<Value> = state.map_or(Vec::new(), |(present, state)| {
            let live = live_stacks(state, self.last);
            let stack = |live: &LiveStack| {
                json!({ "bytes": live.bytes, "blocks": live.blocks,
                    "birth_steps": live.birth_steps, "frames": frames(present, live.stack) })
            };
            live.iter().map(stack).collect()
        });
        json!({
            "device": totals.device, "allocated": totals.allocated, "reserved": totals.reserved,
            "peak_allocated": totals.peak_allocated, "blocks": totals.blocks,
            "allocs": totals.allocs, "frees": totals.frees, "ooms": totals.ooms,
            "malloc_failures": totals.malloc_failures, "device_bytes": totals.device_bytes,
            "steps": steps, "stacks": stacks,
            "thrash": state.and_then(|(present, state)| {
                let churn = Churn::of(&state.trace, present.step);
                churn.is_thrash().then(|| thrash(&churn))
            }),
            "ledger": state.map(|(present, _)| {
                let of = ledger::of(present, totals.device, totals.device_bytes, self.writer);
                Ledger::from(&of)
            }),
        })
    }
}

pub(super) fn thrash(churn: &Churn) -> Value {
    json!({ "steps": churn.steps, "thrashing_steps": churn.thrashing_steps,
        "returned": churn.returned, "taken": churn.taken, "taken_bytes": churn.taken_bytes,
        "retries": churn.retries })
}
