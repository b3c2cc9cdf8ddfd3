//! Ranks that died, and requests for memory that failed.

use memtape_core::detector::{Growth, Layer};
use memtape_core::diagnosis::{Activity, Cause, Class, Fate, KnownGrowth};
use memtape_core::identity::end::End;
use memtape_core::snapshot::failed_request::FailedRequest;
use memtape_core::snapshot::{Frame, StackUse};

use super::maker::{Asked, GIB, LINEAR, MAIN, MIB, STEP, growth};
use super::{Scenario, scenario};

const SECOND: i64 = 1_000_000_000;

/// Rank 2 holds a model and what its steps keep; it failed after the last step.
fn failed() -> Asked {
    Asked::new(growth(Layer::Process, 0), |rank| {
        rank.add(&[LINEAR, "/app/train.py:34:train_step", MAIN], 64 * MIB, 0..64);
        rank.device.device_bytes = 16 * GIB;
    })
    .but(|asked| {
        (asked.growth.onset_step, asked.growth.detected_step) = (STEP, STEP);
        (asked.growth.last_step, asked.growth.grown_bytes) = (STEP, 0);
        (asked.growth.steps_to_oom, asked.growth.forecast) = (None, None);
    })
}

/// What became of the ranks: how and at which second each ended.
fn fates(ends: [Option<(End, i64)>; 4]) -> Vec<Fate> {
    let fate = |(rank, end): (u32, Option<(End, i64)>)| Fate {
        rank,
        end: end.map(|(end, seconds)| (end, seconds * SECOND)),
        exit_status: end.and_then(|(end, _)| (end == End::Failed).then_some(1)),
        pid: None,
        step: STEP,
        activity: Activity::Moving,
    };
    (0..).zip(ends).map(fate).collect()
}

/// A request of 512 MiB failed, with this much in tensors and reserved.
fn asking(allocated: u64, reserved: u64) -> impl FnOnce(&mut Asked) {
    move |asked| {
        // The stack that was added last.
        let stack = asked.suspect.stacks.len() as u32 - 1;
        asked.suspect.failed_request = Some(FailedRequest {
            step: STEP,
            bytes: 512 * MIB,
            stack,
            allocated,
            reserved,
            device_free: Some(100 * MIB),
            uses: vec![StackUse { stack, bytes: 9 * GIB, blocks: 40 }],
            ..FailedRequest::default()
        });
    }
}

pub(crate) fn all() -> Vec<Scenario> {
    let died = |ends| failed().with(|known| known.fates = fates(ends));
    let (killed, failed_at) = (|at| Some((End::Killed, at)), |at| Some((End::Failed, at)));
    let ran_out = [killed(103), killed(103), failed_at(100), killed(104)];
    let line = || Some("train.py:34".to_string());
    let leak = KnownGrowth {
        incident: "inc-0v5ja3z".to_string(),
        class: Class::Leak,
        culprit: Some(Frame {
            file: "/app/train.py".to_string(),
            line: 34,
            function: "train_step".to_string(),
        }),
        advice: "append(loss.item()) instead of the loss".to_string(),
        growth: Growth {
            onset_step: STEP - 90,
            last_step: STEP,
            grown_bytes: 6 * GIB,
            bytes_per_step: 6 * GIB / 90,
            ..Growth::default()
        },
    };
    vec![
        scenario(
            "a rank that was killed while the others wait",
            (Class::Died, None, Cause::Unknown),
            true,
            died([None, None, killed(100), None]),
        ),
        scenario(
            "a rank that the kernel killed for memory of the host",
            (Class::Died, None, Cause::HostObjects),
            true,
            died([killed(104), killed(104), Some((End::OomKilled, 100)), killed(105)]),
        ),
        scenario(
            "a job that was stopped as a whole",
            (Class::Died, None, Cause::Unknown),
            false,
            died([killed(100), killed(100), killed(100), killed(101)]),
        ),
        scenario(
            "a request that the device has no room for",
            (Class::OutOfMemory, line(), Cause::Load),
            true,
            died(ran_out).but(asking(15 * GIB + 600 * MIB, 15 * GIB + 800 * MIB)),
        ),
        scenario(
            "a request that failed because of a leak",
            (Class::OutOfMemory, line(), Cause::Unknown),
            true,
            died(ran_out)
                .but(asking(15 * GIB + 600 * MIB, 15 * GIB + 800 * MIB))
                .with(|known| known.known_growth = Some(leak)),
        ),
        scenario(
            "a request that failed because what is free is inactive split",
            (Class::OutOfMemory, line(), Cause::Fragments),
            true,
            died(ran_out).but(asking(12 * GIB, 15 * GIB + 800 * MIB)),
        ),
        scenario(
            "a request that failed and the rank went on",
            (Class::OutOfMemory, line(), Cause::Load),
            false,
            died([None; 4]).but(asking(15 * GIB + 600 * MIB, 15 * GIB + 800 * MIB)),
        ),
    ]
}
