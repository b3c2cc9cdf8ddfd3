//! The families that are kept apart: their labels are tried without any detector.
//!
//! What a label says is held against the course itself: the bytes that the labelled lines hold, and
//! the account that is labelled first. Healthy ones must have an end.

use memtape_eval::families::{Family, Set, families};
use memtape_eval::job::{Fault, Layer};
use memtape_eval::scenario::Scenario;

const MIB: u64 = 1 << 20;
const SEEDS: u64 = 2;

/// Jobs in the tests have a bounded number of ranks, unless the family needs more.
const RANKS_MAX: u32 = 8;

/// Longest time between two pieces of what grows in pieces.
const PIECE_STEPS_MAX: u64 = 250;

fn each(is_fault: bool, check: impl Fn(&Family, u64, &Scenario)) {
    let all = families();
    let apart = all.iter().filter(|family| family.set == Set::Apart);
    let mut count = 0;
    for family in apart.filter(|family| family.is_fault == is_fault) {
        for seed in 0..SEEDS {
            let scenario = family.scenario(seed, RANKS_MAX);
            let scenario = scenario
                .unwrap_or_else(|| panic!("{} seed {seed}: no try holds its label", family.name));
            assert_eq!(scenario.fault.is_some(), is_fault, "{} seed {seed}", family.name);
            check(family, seed, &scenario);
        }
        count += 1;
    }
    assert!(count >= 14, "{count} families");
}

fn at(scenario: &Scenario, rank: u32, layer: Layer, step: u64) -> u64 {
    scenario.step(rank, step).map_or(0, |of| of.of(layer))
}

/// The lowest level of an account in some steps.
fn lowest(scenario: &Scenario, rank: u32, layer: Layer, steps: std::ops::Range<u64>) -> u64 {
    steps.map(|step| at(scenario, rank, layer, step)).min().unwrap_or(0)
}

/// Bytes that the labelled lines hold at the end of a step.
fn held(scenario: &Scenario, fault: &Fault, rank: u32, step: u64) -> u64 {
    let stacks: Vec<u32> = fault.sites.iter().map(|site| site.stack).collect();
    scenario.run(rank).expect("it was played").held_by(&stacks, step).0
}

#[test]
fn a_labelled_account_gains_what_its_label_says() {
    each(true, |family, seed, scenario| {
        let fault = scenario.fault.as_ref().expect("it is a fault");
        let name = format!("{} seed {seed}", family.name);
        let layer = fault.layers[0];
        for &rank in [&fault.ranks[0], &fault.ranks[fault.ranks.len() - 1]] {
            let begin = fault.onset.saturating_sub(256).max(10);
            let before = lowest(scenario, rank, layer, begin..fault.onset);
            let last = 256.min((scenario.steps - fault.onset) / 2);
            let end = scenario.steps + 1 - last;
            let after = lowest(scenario, rank, layer, end..scenario.steps + 1);
            // The least there is in the last window: all pieces before it but one.
            let steps = end.saturating_sub(fault.onset + PIECE_STEPS_MAX) as f64;
            let sure = 0.5 * steps * fault.rate * share_of_load(scenario);
            let gained = after as f64 - before as f64;
            assert!(gained >= sure - 64e6, "{name}: {gained} of {sure} on rank {rank}");
        }
    });
}

/// Some of what grows grows with the load, which something benign may make small for long.
fn share_of_load(scenario: &Scenario) -> f64 {
    if scenario.notes.is_empty() { 1.0 } else { 0.2 }
}

#[test]
fn labelled_lines_hold_the_leak_from_the_onset_on() {
    each(true, |family, seed, scenario| {
        let fault = scenario.fault.as_ref().expect("it is a fault");
        if fault.sites.is_empty() {
            return;
        }
        let name = format!("{} seed {seed}", family.name);
        let (onset, last) = (fault.onset, scenario.steps);
        for &rank in [&fault.ranks[0], &fault.ranks[fault.ranks.len() - 1]] {
            let before = held(scenario, fault, rank, onset - 1);
            let earlier = held(scenario, fault, rank, (onset / 2).max(1));
            assert!(before <= earlier + fault.rise_min, "{name}: it grows before its onset");
            let until = last.min(onset + PIECE_STEPS_MAX);
            let soon = held(scenario, fault, rank, until);
            assert!(soon > before, "{name}: nothing from {onset} to {until}");
            let gained = scenario.fault_bytes(rank, onset - 1, last) as f64;
            let drawn = fault.rate * (last + 1 - onset) as f64;
            let low = 0.5 * share_of_load(scenario) * drawn - fault.rise_min as f64 / 3.0;
            let high = 2.0 * drawn + fault.rise_min as f64;
            assert!(gained >= low && gained <= high, "{name}: {gained} of {drawn}");
        }
        for rank in (0..scenario.ranks).filter(|rank| !fault.ranks.contains(rank)) {
            // What is in flight there comes and goes.
            let gained = scenario.fault_bytes(rank, onset - 1, last);
            assert!(gained <= fault.rise_min, "{name}: {gained} on rank {rank}, which has it not");
        }
    });
}

/// Accounts with bytes; what the process has on the host wanders.
const ACCOUNTS: [Layer; 9] = [
    Layer::Allocated,
    Layer::Reserved,
    Layer::Deferred,
    Layer::NonTorch,
    Layer::Other,
    Layer::Host,
    Layer::Pinned,
    Layer::Shared,
    Layer::Workers,
];

#[test]
fn healthy_ones_have_an_end() {
    each(false, |family, seed, scenario| {
        assert_eq!(scenario.oom, None, "{} seed {seed}", family.name);
        let turn = scenario.steps * 3 / 5;
        for rank in 0..scenario.ranks.min(4) {
            for layer in ACCOUNTS {
                let highest = |steps: std::ops::Range<u64>| {
                    steps.map(|step| at(scenario, rank, layer, step)).max().unwrap_or(0)
                };
                let (early, late) = (highest(1..turn), highest(turn..scenario.steps + 1));
                let most = early + early / 10 + 256 * MIB;
                let name = family.name;
                assert!(late <= most, "{name} seed {seed}: {layer:?} {early} then {late}");
            }
        }
    });
}

#[test]
fn no_level_exceeds_the_devices_memory() {
    let check = |family: &Family, seed: u64, scenario: &Scenario| {
        for rank in 0..scenario.ranks.min(4) {
            for step in 1..=scenario.steps {
                let of = scenario.step(rank, step).expect("it was played");
                let sum = of.reserved + of.outside.non_torch + of.outside.other;
                let name = family.name;
                assert!(sum <= scenario.device_bytes, "{name} seed {seed} rank {rank} at {step}");
            }
        }
    };
    each(true, check);
    each(false, check);
}
