//! Growths that are easily taken for another one: each has advice of its own.

use memtape_core::detector::Layer::{self, Allocated, Peak, Reserved};
use memtape_core::diagnosis::{AgeProfile, Cause, Class, StepNeed};
use memtape_core::snapshot::TraceKind;

use super::maker::*;
use super::{Scenario, scenario};

fn leak(line: &str, cause: Cause) -> (Class, Option<String>, Cause) {
    (Class::Leak, Some(line.to_string()), cause)
}

pub(crate) fn all() -> Vec<Scenario> {
    let mut all = taken_for_others();
    all.extend(of_one_line());
    all.extend(unpickled());
    all
}

/// What one line allocates, and how a person mends it.
fn of_one_line() -> Vec<Scenario> {
    let one = |size: u64| growth(Allocated, size);
    vec![
        scenario(
            "segments of a tensor that is longer each time",
            leak("replay.py:12", Cause::GrowingTensor),
            true,
            Asked::new(growth(Reserved, 4 * MIB), |rank| {
                rank.add(&["/app/replay.py:12:extend", MAIN], 40 * MIB, [STEP - 1]);
                rank.was(8 * MIB, 1);
                for step in ONSET..STEP {
                    let size = 8 * MIB + (step - ONSET) * MIB / 8;
                    rank.event(TraceKind::Alloc, step, size, step);
                }
            }),
        ),
        scenario(
            "an output that is an attribute of ctx",
            leak("ops.py:24", Cause::Cycles),
            true,
            Asked::new(one(4 * MIB), |rank| {
                let stack = [
                    "/app/ops.py:24:Swish.forward",
                    "/x/site-packages/torch/autograd/function.py:596:Function.apply",
                    "/app/ops.py:38:Activation.forward",
                    CALL,
                    MAIN,
                ];
                rank.add(&stack, 4 * MIB, ONSET..STEP);
            }),
        ),
    ]
}

fn taken_for_others() -> Vec<Scenario> {
    let one = |size: u64| growth(Allocated, size);
    let log = "/app/logs.py:7:log";
    vec![
        concatenated("a tensor that is concatenated onto itself", Allocated, 4 * MIB),
        concatenated("peaks of a tensor that is concatenated onto itself", Peak, 8 * MIB),
        scenario(
            "a leak in a closure that the optimizer calls",
            leak("model.py:40", Cause::Kept),
            true,
            Asked::new(one(4 * MIB), |rank| {
                let stack = [
                    "/app/model.py:40:Model.training_step",
                    "/x/site-packages/lightning/pytorch/strategies/strategy.py:390:training_step",
                    "/x/site-packages/torch/optim/adam.py:226:step",
                    "/x/site-packages/torch/optim/optimizer.py:493:wrapper",
                    "/x/site-packages/lightning/pytorch/trainer/trainer.py:539:fit",
                    MAIN,
                ];
                rank.add(&stack, 4 * MIB, ONSET..STEP);
            }),
        ),
        scenario("a log that only rank 0 keeps", leak("logs.py:7", Cause::Log), true, {
            let mut suspect = Rank::new(0);
            suspect.add(&[log, MAIN], MIB, ONSET..STEP);
            let suspect = suspect.done();
            let peers = [1, 2, 3].map(|rank| Rank::new(rank).done()).to_vec();
            let asked = Asked::new(one(MIB), |_| {});
            Asked { suspect, peers, ..asked }.but(|asked| asked.growth.rank = 0)
        }),
        scenario(
            "a queue that is filled faster than it is emptied",
            leak("prefetch.py:9", Cause::Batches),
            true,
            Asked::new(one(MIB), |rank| {
                rank.add(&["/app/prefetch.py:9:fetch", MAIN], 4 * MIB, STEP - 60..STEP);
            }),
        ),
        scenario(
            "workspaces, one for each stream",
            (Class::Pressure, Some("model.py:12".to_string()), Cause::Workspaces),
            false,
            Asked::new(one(MIB), |rank| {
                let stack = [LINEAR, "/app/model.py:12:forward", CALL, MAIN];
                rank.add(&stack, 20 * MIB, (ONSET..STEP).step_by(20));
                rank.last(|block| block.stream_pool = ((block.birth_step - ONSET) / 20) as u16);
            }),
        ),
    ]
}

/// A larger tensor replaces one in each step: the growth that is seen is of this layer.
fn concatenated(name: &'static str, layer: Layer, rate: u64) -> Scenario {
    let asked = Asked::new(growth(layer, rate), |rank| {
        rank.add(&["/app/replay.py:12:extend", MAIN], GIB, [STEP - 1]);
    })
    .with(|context| {
        // The old one and the new one are alive at once.
        context.step_need = Some(StepNeed { before: 200 * MIB, now: 200 * MIB + GIB });
        context.in_peaks = Some(layer == Peak);
    });
    scenario(name, leak("replay.py:12", Cause::GrowingTensor), true, asked)
}

fn unpickled() -> Vec<Scenario> {
    let one = |size: u64| growth(Allocated, size);
    vec![
        scenario(
            "objects that other ranks sent",
            leak("watch.py:30", Cause::Received),
            true,
            Asked::new(one(2 * MIB), |rank| {
                let stack = [
                    "/x/site-packages/torch/serialization.py:1540:load",
                    "/x/site-packages/torch/storage.py:550:_load_from_bytes",
                    "/x/site-packages/torch/distributed/distributed_c10d.py:3083:_tensor_to_object",
                    "/x/site-packages/torch/distributed/distributed_c10d.py:3190:all_gather_object",
                    "/app/watch.py:30:gather",
                    MAIN,
                ];
                rank.add(&stack, 2 * MIB, ONSET..STEP);
            }),
        ),
        scenario(
            "files that torch.load read",
            leak("ema.py:14", Cause::Loaded),
            true,
            Asked::new(one(2 * MIB), |rank| {
                let load = "/x/site-packages/torch/serialization.py:1540:load";
                rank.add(&[load, "/app/ema.py:14:best", MAIN], 2 * MIB, ONSET..STEP);
            }),
        ),
    ]
}

/// The sentence about a leak of rank 2 where these ranks leak as well, less of it.
fn sentence(others: &[u32]) -> String {
    let made = |rank: u32| {
        let mut of = Rank::new(rank);
        if others.contains(&rank) {
            of.add(&["/app/train.py:36:train_step", MAIN], MIB, ONSET..STEP);
        }
        of.done()
    };
    let asked = Asked::new(growth(Allocated, 4 * MIB), |rank| {
        rank.add(&["/app/train.py:36:train_step", MAIN], 4 * MIB, ONSET..STEP);
    });
    let peers = [0, 1, 3, 4, 5, 6].map(made).to_vec();
    Asked { peers, ..asked }.but(|asked| asked.growth.peers = 6).diagnosed().sentence
}

#[test]
fn a_tensor_that_larger_ones_replace_is_said_to_be_one() {
    for (layer, said) in [
        (Allocated, "rank 2 keeps 8 MiB more each step since step 120, allocated at replay.py:12"),
        (Peak, "the peaks of rank 2 rise by 8 MiB each step since step 120, allocated at"),
    ] {
        let asked = concatenated("", layer, 8 * MIB).asked;
        let of = asked.diagnosed();
        assert!(of.sentence.starts_with(said), "{}", of.sentence);
        let replaces = " in extend, where a larger tensor takes the place of the one before";
        assert!(of.sentence.contains(replaces), "{}", of.sentence);
        assert_eq!(of.histogram.course, AgeProfile::Replaced);
        // Longer sequences cost more within the steps, and what is emptied now and then is no leak.
        let longer = concatenated("", layer, 8 * MIB).asked.with(|context| {
            context.step_need = Some(StepNeed { before: 200 * MIB, now: 4 * GIB });
        });
        let emptied = asked.but(|asked| asked.growth.give_backs = 3);
        for other in [longer, emptied] {
            let of = other.diagnosed();
            assert!(of.class != Class::Leak && !of.pages(), "{:?}: {}", of.class, of.sentence);
        }
    }
}

#[test]
fn peers_are_flat_only_where_all_are() {
    let check = |others: &[u32], expected: &str| {
        let said = sentence(others);
        assert!(said.contains(&format!("; {expected};")), "{said}");
        assert_eq!(said.contains("flat"), others.is_empty(), "{said}");
    };
    check(&[], "its 6 peers are flat");
    check(&[5], "rank 5 grows too");
    check(&[5, 0], "ranks 0 and 5 grow too");
    let beyond = "that is beyond the 1 MiB each step of its median peer";
    check(&[0, 1, 3, 5, 6], &format!("ranks 0, 1, 3, 5 and 1 other grow too; {beyond}"));
}

#[test]
fn advice_is_by_cause() {
    let check = |name: &str, words: &[&str]| {
        let scenario = all().into_iter().find(|one| one.name == name).expect("it is listed");
        let advice = scenario.asked.diagnosed().advice;
        assert!(words.iter().all(|word| advice.contains(word)), "{name}: {advice}");
        assert!(!advice.contains("needs this memory"), "{name}: {advice}");
    };
    check("a tensor that is concatenated onto itself", &["preallocate", "in a list", "once"]);
    check("segments of a tensor that is longer each time", &["torch.cat", "preallocate"]);
    check("an output that is an attribute of ctx", &["save_for_backward"]);
    check("a log that only rank 0 keeps", &["loss.item()", "detach", "maxlen"]);
    check("a queue that is filled faster than it is emptied", &["bound", "prefetch_factor"]);
    check("objects that other ranks sent", &[".cpu()", "drop what was received"]);
    check("files that torch.load read", &["map_location=\"cpu\"", "del it"]);
    check("workspaces, one for each stream", &["CUBLAS_WORKSPACE_CONFIG", "few streams"]);
}
