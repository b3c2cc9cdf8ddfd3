//! What states of ranks tell without growth: failures, reserved memory and peaks far beyond those
//! of the peers. What they do not tell is named in the all-clear.

use crate::training::{Job, MIB, Pattern, ranks};
use memtape_core::detector::Layer;
use memtape_core::diagnosis::Class;
use memtape_core::diagnosis::files::{Analysis, ProcessState, Rank, analyze};
use memtape_core::identity::end::End;
use memtape_core::snapshot::failed_request::FailedRequest;

const GIB: u64 = 1 << 30;

/// Healthy ranks with the segments as a recorder without `--detail` leaves them: not known.
fn recorded(count: u32) -> Vec<Rank> {
    let mut all = ranks(Job { steps: 20, ..Job::default() }, count, &[], Pattern::Clean);
    for device in all.iter_mut().flat_map(|rank| &mut rank.states[0].devices) {
        device.shape = None;
        device.state.device_bytes = 8 * GIB;
        let peak = device.past.peak.as_ref().expect("a peak").bytes;
        device.state.reserved = peak + GIB / 4;
    }
    all
}

fn classes(analysis: &Analysis) -> Vec<(Class, u32)> {
    let found = analysis.found.iter().chain(&analysis.also);
    found.map(|found| (found.diagnosis.class, found.growth.rank)).collect()
}

fn is_unchecked(ranks: &[Rank], layer: Layer) -> bool {
    analyze(ranks).unchecked.iter().any(|(of, _)| *of == layer)
}

fn with_processes(states: &[ProcessState]) -> Vec<Rank> {
    let mut all = recorded(states.len() as u32);
    for (rank, process) in all.iter_mut().zip(states) {
        rank.states[0].process = *process;
    }
    all
}

#[test]
fn an_all_clear_names_what_no_file_holds() {
    let all = recorded(4);
    assert_eq!(classes(&analyze(&all)), []);
    for layer in [Layer::Host, Layer::NonTorch, Layer::Progress, Layer::Process] {
        assert!(is_unchecked(&all, layer), "{layer:?}");
    }
    let alive = with_processes(&[ProcessState::Alive; 4]);
    assert_eq!(classes(&analyze(&alive)), []);
    assert!(is_unchecked(&alive, Layer::Host) && !is_unchecked(&alive, Layer::Process));
}

#[test]
fn reserved_memory_that_rises_in_large_pieces_is_no_all_clear() {
    let mut all = recorded(1);
    assert!(!is_unchecked(&all, Layer::Reserved));
    let device = &mut all[0].states[0].devices[0];
    let base = device.state.reserved;
    let level = |at: usize| base + at as u64 / 10 * 112 * MIB;
    device.past.reserved = (0..device.past.peaks.len()).map(level).collect();
    assert_eq!(classes(&analyze(&all)), []);
    assert!(is_unchecked(&all, Layer::Reserved));
}

#[test]
fn reserved_memory_far_beyond_that_of_the_peers_is_fragmentation() {
    let idle = |count: u32, odd: &[usize]| {
        let mut all = recorded(count);
        odd.iter().for_each(|&rank| all[rank].states[0].devices[0].state.reserved += 4 * GIB);
        all
    };
    let analysis = analyze(&idle(4, &[2]));
    assert_eq!(classes(&analysis), [(Class::Fragmentation, 2)], "{:?}", analysis.found);
    let found = analysis.found.expect("fragmentation");
    assert_eq!(found.bytes, 4 * GIB + GIB / 4, "what is reserved beyond the peak");
    let (against, evidence) = (&found.diagnosis.against, &found.diagnosis.evidence);
    assert!(against.iter().any(|doubt| doubt.contains("earlier phase")), "{against:?}");
    assert!(evidence.iter().any(|line| line.starts_with("live tensors hold ")), "{evidence:?}");
    for (count, odd) in [(1, &[0][..]), (2, &[1]), (4, &[0, 1, 2, 3])] {
        assert_eq!(classes(&analyze(&idle(count, odd))), [], "{odd:?} of {count} ranks");
    }
}

#[test]
fn a_peak_far_beyond_the_peers_is_measured_by_the_device() {
    let higher = |device_bytes: u64| {
        let mut all = recorded(4);
        for (number, rank) in all.iter_mut().enumerate() {
            let device = &mut rank.states[0].devices[0];
            device.state.device_bytes = device_bytes;
            let more = if number == 2 { 500 * MIB } else { 0 };
            device.past.peaks.iter_mut().for_each(|peak| *peak = GIB + more);
        }
        classes(&analyze(&all))
    };
    assert_eq!(higher(8 * GIB), [(Class::Imbalance, 2)]);
    assert_eq!(higher(80 * GIB), []);
    assert_eq!(higher(0), [], "a file of PyTorch does not say how large the device is");
}

#[test]
fn an_imbalance_is_as_large_as_its_blocks_of_steps() {
    let found = |steps: u64, more: fn(u64) -> u64, of_peer: fn(u64) -> u64| {
        let mut all = recorded(4);
        for (number, rank) in all.iter_mut().enumerate() {
            let more = if number == 2 { more } else { of_peer };
            let peak = |step| GIB + more(step) * MIB;
            rank.states[0].devices[0].past.peaks = (0..steps).map(peak).collect();
        }
        let found = analyze(&all).found;
        found.map(|of| (of.diagnosis.class, of.growth.rank, of.bytes / MIB))
    };
    let batches = |step: u64| if step.is_multiple_of(5) { 640 } else { 500 };
    // As many whole steps as a trace can have, and those of one block.
    for steps in [129, 18] {
        assert_eq!(found(steps, batches, |_| 0), Some((Class::Imbalance, 2, 640)), "{steps}");
    }
    let few = Some((Class::Imbalance, 2, 500));
    assert_eq!(found(17, batches, |_| 0), few, "too few for a block of 16 steps");
    let evaluation = |step: u64| if step == 100 { 6_000 } else { 0 };
    assert_eq!(found(129, evaluation, |_| 0), None, "one step of many");
    let seldom = |step: u64| if step.is_multiple_of(16) { 700 } else { 0 };
    assert_eq!(found(129, batches, seldom), None, "its peers need as much in each block");
}

#[test]
fn a_process_that_died_is_reported() {
    use ProcessState::{Alive, Ended, Unknown, Unsealed};
    let of = |states: &[ProcessState]| classes(&analyze(&with_processes(states)));
    assert_eq!(of(&[Alive, Alive, Unsealed, Alive]), [(Class::Died, 2)]);
    assert_eq!(of(&[Unknown, Ended(End::Failed, Some(1))]), [(Class::Died, 1)]);
    assert_eq!(of(&[Ended(End::Exited, Some(0)), Alive]), []);
    assert_eq!(of(&[Ended(End::Killed, Some(-15)), Alive]), [], "it was asked to end");
    // Copies of the tapes of a running job are not sealed either.
    for copies in [&[Unsealed; 4][..], &[Unsealed], &[Unsealed, Ended(End::Exited, None)]] {
        assert_eq!(of(copies), [], "{copies:?}");
        assert!(is_unchecked(&with_processes(copies), Layer::Process), "{copies:?}");
    }
    let analysis = analyze(&with_processes(&[Alive, Alive, Unsealed, Alive]));
    let sentence = analysis.found.expect("a death").diagnosis.sentence;
    let ended = "rank 2 ended without an orderly exit, with ";
    assert!(sentence.starts_with(ended), "{sentence}");
}

#[test]
fn a_failed_request_is_reported_beside_the_growth() {
    let leak = Pattern::Leak { bytes: 3 * MIB / 2, every: 1 };
    let mut all = ranks(Job::default(), 4, &[2], leak);
    let state = &mut all[2].states[0];
    let step = state.rank.step;
    let request = FailedRequest { bytes: 96 * MIB, step, ..FailedRequest::default() };
    state.rank.failed_request = Some(request);
    state.process = ProcessState::Ended(End::Failed, Some(1));
    let analysis = analyze(&all);
    assert_eq!(classes(&analysis), [(Class::Leak, 2), (Class::OutOfMemory, 2)]);
    let sentence = &analysis.also[0].diagnosis.sentence;
    assert!(sentence.contains("96 MiB asked for"), "{sentence}");
    assert!(sentence.ends_with("and it exited with status 1"), "{sentence}");
}
