//! What a rank of a capture has kept, as text: its lines beside those of the median peer.

use std::fmt::Write;

use memtape_core::stacks::HeldAt;
use memtape_proto::api::{FailedMemory, Frame, Kept, KeptLine};

use crate::output::clean;
use crate::render::table::Table;
use crate::render::units::{bytes, frame, plural, signed_bytes};

/// The amounts of the rank, and a table of its lines.
pub(crate) fn text(of: &Kept) -> String {
    let mut text = format!(
        "rank {} of {} {}: {} of GPU memory in {}{}\n",
        of.rank,
        clean(&of.job),
        time(of),
        bytes(of.bytes),
        plural(of.blocks, "live block"),
        range(of)
    );
    text.extend(of.failed.as_ref().map(|failed| request(of, failed)));
    if let Some(peer_bytes) = of.peer_bytes {
        let others = match &of.baseline {
            Some(capture) => format!("in {}", clean(capture)),
            None => format!("median of {}", plural(of.peers.len() as u64, "peer")),
        };
        let at = match (of.at == HeldAt::StepEnd, &of.baseline) {
            (true, _) => "",
            (false, Some(_)) => ", at its peak there",
            (false, None) => ", each at its peak",
        };
        let _ = writeln!(text, "{others}{at}: {}", bytes(peer_bytes));
    }
    for missing in &of.missing_peers {
        let _ = writeln!(text, "rank {} is not compared: {}", missing.rank, clean(&missing.why));
    }
    if of.peers_left_out > 0 {
        let left_out = plural(of.peers_left_out.into(), "rank");
        let _ = writeln!(text, "not compared: {left_out} of the same role with farther numbers");
    }
    if !of.lines.is_empty() {
        let others = if of.baseline.is_some() { ">baseline" } else { ">median peer" };
        let _ = write!(text, "\n{}", table(&of.lines, others).text());
    }
    if of.other_lines.count > 0 {
        let (more, held) = (plural(of.other_lines.count, "more line"), bytes(of.other_lines.bytes));
        let _ = writeln!(text, "{more} with {held}");
    }
    if of.unrecorded_bytes > 0 {
        let why = match of.at == HeldAt::FailedRequest {
            true => "of lines that held less, or are not known",
            false => "in no recorded block: the tape was full",
        };
        let _ = writeln!(text, "{} more are {why}", bytes(of.unrecorded_bytes));
    }
    text
}

/// When the memory is alive.
fn time(of: &Kept) -> String {
    match of.at.known().unwrap_or_default() {
        HeldAt::StepEnd => format!("at the end of step {}", of.step),
        HeldAt::Peak => format!("at the peak, in step {}", of.step),
        HeldAt::FailedRequest => format!("when a request failed, in step {}", of.step),
    }
}

/// The failed request: what did not fit, or how to see the memory of that time.
fn request(of: &Kept, failed: &FailedMemory) -> String {
    let asked = bytes(failed.asked_bytes);
    if of.at != HeldAt::FailedRequest {
        let step = failed.step;
        return format!(
            "a request for {asked} failed later, in step {step}: --at failed_request\n"
        );
    }
    let Frame { file, line, .. } = &failed.frame;
    let line = match file.is_empty() {
        true => String::new(),
        false => format!(" at {}:{line}", clean(file)),
    };
    let (tensors, held) = (bytes(failed.allocated_bytes), bytes(failed.reserved_bytes));
    let free =
        failed.device_free_bytes.map(bytes).map(|free| format!(", {free} of the device free"));
    let free = free.unwrap_or_default();
    format!(
        "{asked} asked for{line} did not fit: the allocator held {held}, {tensors} of it in \
             tensors{free}\n"
    )
}

/// The steps in which the memory was allocated.
fn range(of: &Kept) -> String {
    match (of.from, of.to) {
        (None, None) => String::new(),
        (Some(from), None) => format!(", allocated in step {from} or later"),
        (from, Some(to)) => format!(", allocated in steps {} to {to}", from.unwrap_or(1)),
    }
}

fn table<'a>(lines: &'a [KeptLine], others: &'a str) -> Table<'a, KeptLine> {
    let name = |line: &KeptLine| match frame(&line.frame).as_str() {
        ":0" => "(no stack)".to_string(),
        known => known.to_string(),
    };
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let beyond = |line: &KeptLine| {
        line.peer_bytes.map(|of_peer| signed_bytes(signed(line.bytes) - signed(of_peer)))
    };
    let steps = |line: &KeptLine| match (line.first_step, line.last_step) {
        (Some(first), Some(last)) if first < last => Some(format!("{first} to {last}")),
        (first, _) => first.map(|first| first.to_string()),
    };
    Table::of(lines)
        .column("line", name)
        .column(">holds", |line| bytes(line.bytes))
        .column(">blocks", |line| line.blocks)
        .column_if_any(others, |line| line.peer_bytes.map(bytes))
        .column_if_any(">beyond it", beyond)
        .column_if_any(">of steps", steps)
}

#[cfg(test)]
mod tests {
    use memtape_proto::api::{KeptRest, MissingPeer};

    use super::*;

    #[test]
    fn lines_stand_beside_those_of_the_median_peer() {
        let train = Frame { file: "/app/train.py".into(), line: 36, function: "step".into() };
        let line = |frame: &Frame, bytes, peer_bytes, steps: Option<(u64, u64)>| KeptLine {
            frame: frame.clone(),
            bytes,
            blocks: 2,
            peer_bytes,
            first_step: steps.map(|of| of.0),
            last_step: steps.map(|of| of.1),
        };
        let mut kept = Kept {
            job: "train@0".into(),
            rank: 2,
            at: HeldAt::StepEnd.into(),
            step: 80,
            from: Some(9),
            to: Some(80),
            bytes: 64 << 20,
            blocks: 4,
            peers: vec![0, 1, 3],
            peer_bytes: Some(1 << 20),
            missing_peers: vec![MissingPeer { rank: 4, why: "it is dead".into() }],
            lines: vec![
                line(&train, 64 << 20, Some(0), Some((10, 79))),
                line(&Frame::default(), 0, Some(1 << 20), None),
            ],
            other_lines: KeptRest { count: 2, bytes: 3 << 10, blocks: 2 },
            unrecorded_bytes: 512,
            ..Kept::default()
        };
        let expected = "rank 2 of train@0 at the end of step 80: 64 MiB of GPU memory in 4 live \
                        blocks, allocated in steps 9 to 80\nmedian of 3 peers: 1 MiB\n\
                        rank 4 is not compared: it is dead\n";
        let shown = text(&kept);
        assert!(shown.starts_with(expected), "{shown}");
        let rows: Vec<Vec<&str>> =
            shown.lines().map(|row| row.split_whitespace().collect()).collect();
        let first = "/app/train.py:36 step 64 MiB 2 0 B +64 MiB 10 to 79";
        assert_eq!(rows[5].join(" "), first, "{shown}");
        assert_eq!(rows[6].join(" "), "(no stack) 0 B 2 1 MiB -1 MiB –", "{shown}");
        assert!(shown.contains("2 more lines with 3 KiB\n512 B more are in no"), "{shown}");
        kept.failed = Some(FailedMemory {
            step: 81,
            asked_bytes: 96 << 20,
            frame: train.clone(),
            allocated_bytes: 3 << 30,
            reserved_bytes: 4 << 30,
            device_free_bytes: Some(5 << 20),
            ..FailedMemory::default()
        });
        let later = "\na request for 96 MiB failed later, in step 81: --at failed_request\n";
        assert!(text(&kept).contains(later), "{}", text(&kept));
        (kept.at, kept.step) = (HeldAt::FailedRequest.into(), 81);
        let then = text(&kept);
        let expected = "rank 2 of train@0 when a request failed, in step 81: ";
        assert!(then.starts_with(expected), "{then}");
        let expected = "96 MiB asked for at /app/train.py:36 did not fit: the allocator held \
                        4 GiB, 3 GiB of it in tensors, 5 MiB of the device free\n\
                        median of 3 peers, each at its peak: 1 MiB\n";
        assert!(then.contains(expected), "{then}");
        (kept.at, kept.failed) = (HeldAt::StepEnd.into(), None);
        (kept.from, kept.to, kept.peer_bytes) = (None, None, None);
        kept.lines.iter_mut().for_each(|line| line.peer_bytes = None);
        let alone = text(&kept);
        assert!(!alone.contains("median") && !alone.contains("allocated in"), "{alone}");
    }
}
