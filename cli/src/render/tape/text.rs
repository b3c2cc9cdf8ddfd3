//! A tape as text: its header, then each device, then memory outside the allocator.

use std::fmt::Write;
use std::path::Path;

use memtape_agent::Writer;
use memtape_core::diagnosis::Churn;
use memtape_core::snapshot::{DeviceSnapshot, RankSnapshot, TraceEvent, TraceKind};
use memtape_core::tape::StepRecord;
use memtape_core::tape::read::{DeviceTotals, Status};
use memtape_core::tape::rewind::PointInTime;

use super::{Summary, frames, live_stacks};
use crate::clock::utc;
use crate::output::clean;
use crate::read::tape_file;
use crate::render::sections::table_section;
use crate::render::table::Table;
use crate::render::units::{bytes, plural, signed_bytes};
use crate::render::{collectives, ledger};

/// Said where [`RankSnapshot::outside_missing`].
const OUTSIDE_MISSING: &str = "memory past the allocator cannot be shown, or not all of it: its \
                               events back to this moment are overwritten";

impl Summary {
    /// The whole tape.
    pub(crate) fn to_text(&self, path: &Path) -> String {
        let identity = self.tape.identity();
        let mut text = String::new();
        let end = if self.status.step == 0 {
            String::new()
        } else {
            format!(", ended {} UTC", utc(self.tape.wall_ns(self.status.step_mono_ns)))
        };
        let oldest = match self.tape.oldest_step() {
            0 => "none".to_string(),
            step => format!("{step} and later"),
        };
        for (name, value) in [
            ("tape", path.display().to_string()),
            ("process", tape_file::process(self.writer, &self.status)),
            ("job", format!("{}, attempt {}", identity.job, identity.attempt)),
            (
                "rank",
                format!(
                    "{} of {}, local rank {}, host {}",
                    identity.rank, identity.world_size, identity.local_rank, identity.host
                ),
            ),
            ("command", identity.command.clone()),
            ("recording", format!("since {} UTC", utc(self.status.start_wall_ns))),
            ("step", format!("{}{end}", self.status.step)),
            ("rewindable", oldest),
        ] {
            let _ = writeln!(text, "{name:<12}{}", clean(&value));
        }
        if let Some(hint) = no_steps_text(&self.status, self.writer) {
            let _ = writeln!(text, "{:<12}{hint}", "no steps");
        }
        if let Some(why) = &self.status.disabled {
            let _ = writeln!(text, "{:<12}recording stopped: {}", "stopped", clean(why));
        }
        for limitation in &self.status.limitations {
            let _ = writeln!(text, "{:<12}{}", "limitation", clean(limitation));
        }
        let losses = self.status.losses.iter().filter(|(_, count)| *count > 0);
        for (loss, count) in losses {
            let _ = writeln!(text, "{:<12}{count} {}", "lost", loss.as_str());
        }
        self.marks_text(&mut text);
        self.oom_text(&mut text);
        for totals in &self.totals {
            self.device_text(totals, &mut text);
        }
        text += &collectives::text(&self.tape.collectives());
        self.outside_text(&mut text);
        text
    }

    /// Memory taken outside the allocator, or why it is unknown.
    fn outside_text(&self, text: &mut String) {
        match &self.state {
            Ok(state) => {
                if !state.outside.is_empty() {
                    let rows = ledger::outside_text(&state.outside);
                    table_section(text, "Taken past the allocator, or by it", &rows, None);
                }
                if !state.outside_stacks.is_empty() {
                    let rows = ledger::lines_text(state);
                    table_section(text, "Taken past the allocator, by line", &rows, None);
                }
                if state.outside_missing {
                    let _ = writeln!(text, "\n{OUTSIDE_MISSING}");
                }
            }
            // A failure is said once, at the end.
            Err(why) if self.failure.is_none() => {
                let _ = writeln!(text, "\nlive blocks cannot be shown: {why}");
            }
            Err(_) => {}
        }
    }

    fn device_text(&self, totals: &DeviceTotals, text: &mut String) {
        let device = totals.device;
        let uuids = self.tape.device_uuids();
        let uuid = uuids.iter().find(|(of, _)| *of == device);
        let uuid = uuid.map_or(String::new(), |(_, uuid)| format!(" {uuid}"));
        let size = match totals.device_bytes {
            0 => "unknown size".to_string(),
            size => bytes(size),
        };
        let _ = writeln!(text, "\nDevice {device}{uuid} ({size})");
        let state = self.device(device);
        self.totals_text(totals, state.map(|(_, state)| state), text);
        let steps = self.last_steps(device);
        if !steps.is_empty() {
            let up_to = match self.step() {
                step if step < self.status.step => format!(" up to step {step}"),
                _ => String::new(),
            };
            table_section(text, &format!("Last steps{up_to}"), &step_table(&steps), None);
        }
        let Some((present, state)) = state else { return };
        let ledger = ledger::of(present, device, totals.device_bytes, self.writer);
        table_section(text, "Where the bytes are", &ledger::text(&ledger), None);
        let churn = Churn::of(&state.trace, present.step);
        if churn.is_thrash() {
            let _ = writeln!(text, "\n{}", thrash_text(&churn));
        }
        self.events_text(present, state, text);
        self.stacks_text(present, state, text);
    }

    /// Bytes of the device at the point in time shown, then in the newest state. The newest state
    /// of an exited process is after Python gave everything back.
    fn totals_text(
        &self,
        totals: &DeviceTotals,
        state: Option<&DeviceSnapshot>,
        text: &mut String,
    ) {
        let mut line = |when: &str, allocated: u64, reserved: u64, blocks: u64| {
            let reserved = match reserved {
                0 if allocated > 0 => "unknown".to_string(),
                known => bytes(known),
            };
            let allocated = bytes(allocated);
            let _ = writeln!(
                text,
                "  {when}: allocated {allocated}, reserved {reserved}, {blocks} live blocks"
            );
        };
        if let Some(state) = state.filter(|_| self.moment != PointInTime::Present) {
            line(&self.when(), state.allocated, state.reserved, state.blocks.len() as u64);
        }
        line(self.newest(), totals.allocated, totals.reserved, totals.blocks);
        let _ = writeln!(
            text,
            "  in all: peak {}, {} allocs, {} frees, {} ooms, {} failed mallocs",
            bytes(totals.peak_allocated),
            totals.allocs,
            totals.frees,
            totals.ooms,
            totals.malloc_failures,
        );
    }

    fn stacks_text(&self, present: &RankSnapshot, state: &DeviceSnapshot, text: &mut String) {
        let stacks = live_stacks(state, self.last);
        if stacks.is_empty() {
            return;
        }
        let _ = writeln!(text, "\nStacks that hold most {}", self.when());
        for live in stacks {
            let _ = writeln!(
                text,
                "  {} in {} from {}",
                bytes(live.bytes),
                plural(live.blocks, "block"),
                plural(live.birth_steps, "step")
            );
            let frames = frames(present, live.stack);
            if frames.is_empty() {
                let _ = writeln!(text, "      (stack not known)");
            }
            for line in frames {
                let _ = writeln!(text, "      {line}");
            }
        }
    }

    fn events_text(&self, present: &RankSnapshot, state: &DeviceSnapshot, text: &mut String) {
        let first = state.trace.len().saturating_sub(self.last);
        let events = state.trace.get(first..).unwrap_or_default();
        if events.is_empty() {
            return;
        }
        let address = |event: &TraceEvent| match event.kind {
            // What stands there is no address.
            TraceKind::Oom | TraceKind::MallocFailed => "–".to_string(),
            _ => format!("{:#x}", event.address),
        };
        let line = |event: &TraceEvent| frames(present, event.stack).into_iter().next();
        let table = Table::of(events)
            .column(">after step", |event| event.step)
            .column("event", |event| <&str>::from(event.kind))
            .column(">address", address)
            .column(">size", |event| bytes(event.size))
            .column("line", |event| line(event).unwrap_or_default());
        table_section(text, "Last events", &table.text(), None);
    }

    /// The newest request that failed for good: its size, its stack, and the memory at that time.
    fn oom_text(&self, text: &mut String) {
        let Some((_, oom)) = self.tape.last_oom() else { return };
        let free = match oom.detail {
            0 => String::new(),
            free => format!(", the device had {} free", bytes(free)),
        };
        let at = utc(self.tape.wall_ns(oom.mono_ns));
        let (allocated, reserved) = (bytes(oom.address), bytes(oom.birth_ns));
        let _ = writeln!(
            text,
            "{:<12}{} asked for on device {} after step {}, {at} UTC: {allocated} of {reserved} \
             reserved were in use{free}; --oom shows by what",
            "last oom",
            bytes(oom.size),
            oom.device,
            oom.step,
        );
    }

    fn marks_text(&self, text: &mut String) {
        let phase = self.tape.phase();
        if !phase.is_empty() {
            let _ = writeln!(text, "{:<12}{}", "phase", clean(&phase));
        }
        for mark in self.tape.marks(self.last) {
            let at = utc(self.tape.wall_ns(mark.mono_ns));
            let what = if mark.text.is_empty() { "no phase".into() } else { clean(&mark.text) };
            let _ = writeln!(text, "{:<12}step {}, {at} UTC: {what}", "mark", mark.step);
        }
    }
}

/// Advice where no step has ended, unless a limitation says that none can.
fn no_steps_text(status: &Status, writer: Writer) -> Option<&'static str> {
    let is_explained = status.limitations.iter().any(|line| line.starts_with("no steps"));
    if status.step > 0 || is_explained {
        return None;
    }
    // One that failed may have done so in its first step.
    let is_well = status.sealed && matches!(status.exit_status, None | Some(0));
    Some(match (writer, is_well) {
        (Writer::Gone | Writer::Unknown, true) => {
            "the script stepped no optimizer, so only its end can be shown: call memtape.step() \
             in its loop (see README.md)"
        }
        _ => {
            "none has ended: a script that steps no optimizer is counted in turns after some time, \
             or calls memtape.step() in its loop (see README.md)"
        }
    })
}

/// Effect of emptying the cache again and again.
fn thrash_text(churn: &Churn) -> String {
    format!(
        "cache thrash: in {} of the {} last steps the allocator gave segments back and took others \
         ({} taken, {} in all), as with empty_cache() in the loop",
        churn.thrashing_steps,
        churn.steps,
        churn.taken,
        bytes(churn.taken_bytes),
    )
}

/// The table of steps, each with the change of its minimum since the row before.
fn step_table(steps: &[(StepRecord, Option<i64>)]) -> String {
    let span = |record: &StepRecord| match record.first_step == record.last_step {
        true => record.last_step.to_string(),
        false => format!("{}-{}", record.first_step, record.last_step),
    };
    Table::of(steps)
        .column(">step", |(record, _)| span(record))
        .column(">step min", |(record, _)| bytes(record.floor_allocated))
        .column(">Δ min", |(_, change)| change.map_or("–".to_string(), signed_bytes))
        .column(">peak", |(record, _)| bytes(record.peak_allocated))
        .column(">end", |(record, _)| bytes(record.end_allocated))
        .column(">reserved", |(record, _)| bytes(record.end_reserved))
        .column(">blocks", |(record, _)| record.blocks)
        .column("ended (UTC)", |(record, _)| utc(record.end_wall_ns))
        .text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_steps_are_reported_once_with_advice() {
        let ended = |code| Status { sealed: true, exit_status: Some(code), ..Status::default() };
        let limited = |line: &str| Status { limitations: vec![line.to_string()], ..ended(0) };
        let check = |status: Status, writer: Writer, expected: Option<&str>| {
            let hint = no_steps_text(&status, writer);
            let is_right = match expected {
                Some(words) => hint.is_some_and(|hint| hint.starts_with(words)),
                None => hint.is_none(),
            };
            assert!(is_right, "{status:?}, {writer:?}: {hint:?}");
        };
        check(ended(0), Writer::Gone, Some("the script stepped no optimizer"));
        check(ended(1), Writer::Gone, Some("none has ended"));
        check(Status::default(), Writer::Gone, Some("none has ended"));
        check(Status::default(), Writer::Alive(None), Some("none has ended"));
        check(limited("no stacks: MEMTAPE_STACKS=0"), Writer::Unknown, Some("the script"));
        let no_hook = limited("no steps: PyTorch's optimizer hook is not there");
        check(no_hook, Writer::Gone, None);
        check(Status { step: 1, ..ended(0) }, Writer::Gone, None);
    }

    #[test]
    fn thrash_is_one_line() {
        let churn = Churn {
            steps: 16,
            thrashing_steps: 15,
            returned: 30,
            taken: 45,
            taken_bytes: 90 << 20,
            retries: 0,
            returned_by: 0,
        };
        let line = thrash_text(&churn);
        assert!(line.starts_with("cache thrash: in 15 of the 16 last steps "), "{line}");
        assert!(line.contains("(45 taken, 90 MiB in all)") && line.lines().count() == 1, "{line}");
        assert_eq!(super::super::json::thrash(&churn)["taken_bytes"], 90 << 20);
    }

    #[test]
    fn shared_records_show_their_span() {
        let record = StepRecord {
            first_step: 4,
            last_step: 9,
            floor_allocated: 512,
            ..StepRecord::default()
        };
        let text = step_table(&[(record, None), (record, Some(2_820_669))]);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(1).map(|row| row.split_whitespace().take(5).collect()).collect();
        assert_eq!(rows[0], ["4-9", "512", "B", "–", "0"]);
        assert_eq!(rows[1], ["4-9", "512", "B", "+2.69", "MiB"]);
    }
}
