//! `cargo xtask bench disturbance`: step times of a training job while captures are taken, back to
//! back, beside those of the same job without any.
//!
//! tests/gpu/disturbance.py measures (its head says how), here with one rank on the fake CUDA
//! runtime, whose "GPU" is a core of its own. On a machine with GPUs the script is run by itself.

use serde_json::{Value, json};

use super::cluster::build;
use crate::report::{Outcome, Step, or_failure};
use crate::step::{command, json_of, released, root, run, say};
use crate::torch;

/// A job that fits on one core: steps of a few milliseconds.
const OPTIONS: [&str; 14] = [
    "--ranks",
    "1",
    "--backend",
    "gloo",
    "--width",
    "512",
    "--batch",
    "256",
    "--rounds",
    "24",
    "--steps",
    "150",
    "--apart",
    "--json",
];

/// Measures, and says what it found.
pub(crate) fn bench() -> Outcome {
    let mut steps = Vec::new();
    let (found, failure) = or_failure(measure(&mut steps));
    let is_good = found["ok"] == true;
    let figures = found.get("figures").cloned().unwrap_or_else(|| json!({}));
    let text = text(&figures) + &failure;
    Outcome::measured(("bench disturbance", is_good), &figures, &steps, text)
}

fn measure(steps: &mut Vec<Step>) -> Result<Value, String> {
    build(steps, &["memtape", "memtape-recorder"])?;
    let python = torch::python();
    if !torch::is_ready(&python) {
        steps.push(run("fetch PyTorch", torch::install()));
    }
    say("training with and without captures …\n");
    let mut script = command(root().join("tests/fake_cuda/run"));
    script.args(["-n", "1", "-b", "4G", "--"]).arg(python).arg("tests/gpu/disturbance.py");
    script.arg("--memtape").arg(released("")).args(OPTIONS);
    script.stderr(std::process::Stdio::inherit());
    json_of(&mut script).map(|(_, found)| found)
}

fn text(figures: &Value) -> String {
    let number = |name: &str| figures[name].as_f64().unwrap_or(f64::NAN);
    let mut text =
        format!("{:.0} captures in {:.0} rounds\n", number("captures"), number("rounds"));
    for mode in ["captures", "again", "busy"] {
        for kind in ["median", "mean", "cpu"] {
            let key = format!("{mode}_{kind}_percent");
            text += &format!(
                "{mode:10}{kind:8}{:>+8.2} % [{:+.2}, {:+.2}] of a step without\n",
                number(&key),
                number(&format!("{key}_low")),
                number(&format!("{key}_high")),
            );
        }
    }
    text
}
