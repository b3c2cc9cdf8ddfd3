//! What states of ranks do not tell is named in the all-clear.

use crate::training::{Job, MIB, Pattern, ranks};
use memtape_core::detector::Layer;
use memtape_core::diagnosis::Class;
use memtape_core::diagnosis::files::{Analysis, ProcessState, Rank, analyze};

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
