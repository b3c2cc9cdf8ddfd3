//! Growths that are no mistake: each near to a fault.

use memtape_core::detector::Layer::{Allocated, Peak, Retries, Spread};
use memtape_core::diagnosis::{Cause, Class, Peaks, StepNeed};

use super::maker::*;
use super::{Scenario, scenario};

pub(crate) fn all() -> Vec<Scenario> {
    let mut all = made_once();
    all.extend(passing());
    all.extend(work());
    all
}

fn needed(line: &str, cause: Cause) -> (Class, Option<String>, Cause) {
    (Class::Pressure, Some(line.to_string()), cause)
}

fn made_once() -> Vec<Scenario> {
    let one = || growth(Allocated, MIB);
    vec![
        scenario(
            "optimizer state made lazily",
            needed("train.py:40", Cause::OptimizerState),
            false,
            Asked::on_all(growth(Allocated, 5 * MIB), |rank| {
                rank.add(&[ADAM, "/app/train.py:40:train_step", MAIN], 64 * MIB, [121; 20]);
            }),
        ),
        scenario(
            "averaged weights begin",
            needed("ema.py:12", Cause::OneTime),
            false,
            Asked::on_all(one(), |rank| {
                rank.add(&["/app/ema.py:12:Ema.start", MAIN], 64 * MIB, [200; 20]);
            }),
        ),
        scenario(
            "adapters are unfrozen",
            needed("lora.py:9", Cause::OptimizerState),
            false,
            Asked::on_all(one(), |rank| {
                rank.add(&[ADAM, "/app/lora.py:9:unfreeze", MAIN], 16 * MIB, [200; 10]);
                rank.add(
                    &["::MmBackward0", "/app/train.py:34:train_step", MAIN],
                    4 * MIB,
                    [STEP - 1; 10],
                );
            }),
        ),
        scenario(
            "a cache that fills and stops",
            needed("cache.py:5", Cause::OneTime),
            false,
            Asked::on_all(one(), |rank| {
                rank.add(
                    &["/app/cache.py:5:put", MAIN],
                    4 * MIB,
                    (ONSET..160).chain([170, 200, 260, 330]),
                );
            }),
        ),
        scenario(
            "copies for a checkpoint",
            needed("save.py:9", Cause::Checkpoint),
            false,
            Asked::on_all(one(), |rank| {
                let inner =
                    "/x/site-packages/torch/distributed/checkpoint/state_dict.py:7:_offload";
                rank.add(&[inner, "/app/save.py:9:save", MAIN], 64 * MIB, [375; 20]);
            }),
        ),
        scenario(
            "results kept until the evaluation ends",
            needed("eval.py:22", Cause::Load),
            false,
            Asked::on_all(one(), |rank| {
                rank.add(&["/app/eval.py:22:evaluate", MAIN], 4 * MIB, [375; 100]);
            }),
        ),
    ]
}

fn passing() -> Vec<Scenario> {
    let one = || growth(Allocated, MIB);
    vec![
        scenario(
            "batches that are fetched ahead",
            needed("data.py:40", Cause::Load),
            false,
            Asked::on_all(one(), |rank| {
                rank.add(&["/app/data.py:40:fetch", MAIN], 128 * MIB, [373, 374, 375]);
            }),
        ),
        scenario(
            "gradients of eight steps together",
            needed("train.py:34", Cause::Load),
            false,
            Asked::on_all(one(), |rank| {
                rank.add(
                    &["::AddBackward0", "/app/train.py:34:train_step", MAIN],
                    32 * MIB,
                    368..STEP,
                );
            }),
        ),
        scenario(
            "the last three checkpoints are kept",
            needed("save.py:9", Cause::Load),
            false,
            Asked::on_all(one(), |rank| {
                rank.add(&["/app/save.py:9:save", MAIN], 128 * MIB, [320, 340, 360]);
            }),
        ),
        scenario(
            "sequences become longer",
            needed("model.py:12", Cause::Load),
            false,
            Asked::on_all(one(), |rank| {
                rank.add(
                    &[
                        LINEAR,
                        "/app/model.py:12:forward",
                        CALL,
                        "/app/train.py:33:train_step",
                        MAIN,
                    ],
                    400 * MIB,
                    [375],
                );
                rank.was(100 * MIB, 1);
            })
            .with(|context| context.step_need = Some(StepNeed { before: GIB, now: 3 * GIB })),
        ),
    ]
}

fn work() -> Vec<Scenario> {
    let uneven = |cause: Cause| (Class::Imbalance, None, cause);
    let stack = ["/app/moe.py:31:Experts.forward", CALL, "/app/train.py:33:train_step", MAIN];
    let buffers = |size: u64| {
        move |rank: &mut Rank| {
            rank.add(&stack, size, [374, 374, 375, 375]).was(100 * MIB, 4);
        }
    };
    vec![
        scenario(
            "one rank has larger blocks",
            (Class::Imbalance, Some("moe.py:31".to_string()), Cause::Balance),
            false,
            Asked::new(growth(Allocated, MIB), buffers(150 * MIB)).but(|asked| {
                asked.peers = [0, 1, 3]
                    .map(|rank| {
                        let mut peer = Rank::new(rank);
                        buffers(60 * MIB)(&mut peer);
                        peer.done()
                    })
                    .to_vec();
            }),
        ),
        scenario(
            "one rank's peaks stay higher",
            uneven(Cause::Balance),
            false,
            Asked::new(growth(Spread, 0), |_| {})
                .but(|asked| asked.growth.grown_bytes = 7 * GIB)
                .with(|context| context.peaks = Some(Peaks { own: 70 * GIB, peers: 63 * GIB })),
        ),
        scenario(
            "one rank's peaks rise",
            uneven(Cause::Balance),
            false,
            Asked::new(growth(Peak, 20 * MIB), |_| {}),
        ),
        scenario(
            "peaks rise everywhere",
            (Class::Pressure, None, Cause::Load),
            false,
            Asked::on_all(growth(Peak, 20 * MIB), |_| {}),
        ),
        scenario(
            "the allocator tries again, and nothing is free",
            (Class::Pressure, None, Cause::Load),
            false,
            Asked::on_all(growth(Retries, 0), |rank| {
                rank.segment(2 * MIB, 0, false);
                rank.event(memtape_core::snapshot::TraceKind::Alloc, 1, MIB, 375);
            })
            .but(|asked| {
                asked.growth.grown_bytes = 31;
                asked.growth.steps_to_oom = None;
            }),
        ),
    ]
}
