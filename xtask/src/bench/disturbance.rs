//! `cargo xtask bench disturbance`: step times of a training job while captures are taken, back to
//! back, beside those of the same job without any.
//!
//! tests/gpu/disturbance.py measures (its head says how), here with one rank on the fake CUDA
//! runtime, whose "GPU" is a core of its own. On a machine with GPUs the script is run by itself.

use std::process::Stdio;

use anyhow::Result;

use crate::process::{Steps, json_of, released, say};
use crate::python;
use crate::report::Found;

/// A job that fits on one core: steps of a few milliseconds.
const OPTIONS: &str =
    "--ranks 1 --backend gloo --width 512 --batch 256 --rounds 24 --steps 150 --apart --json";

pub(super) fn bench(steps: &mut Steps) -> Result<Found> {
    steps.build(&["memtape", "memtape-recorder"])?;
    python::fetch_torch(steps)?;
    say("training with and without captures …\n");
    let mut script = python::on_fake_cuda("4G", "tests/gpu/disturbance.py");
    script.arg("--memtape").arg(released("")).args(OPTIONS.split(' '));
    let (_, found) = json_of(&mut script, Stdio::inherit())?;
    Ok(Found::figures(found["ok"] == true, &found["figures"]))
}
