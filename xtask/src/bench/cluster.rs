//! `cargo xtask bench cluster`: how many ranks one coordinator holds, and what they cost.
//!
//! tests/load is the generator: agents of eight ranks over gRPC on loopback, one record per second
//! and rank, against the coordinator as it is released. Here it is built, run for each size, and
//! its figures put into words. Generator and coordinator share the machine's cores.

use serde_json::{Value, json};

use crate::report::{Outcome, Step, or_failure};
use crate::step::{cargo, command, json_of, released, run, say};

/// Sizes, unless one is asked for.
const RANKS: [u64; 4] = [512, 2_048, 8_192, 16_384];

/// Ranks of a storm, unless another number is asked for: 2,048 agents, 2 GiB.
const STORM_RANKS: u64 = 16_384;

const PACKAGES: [&str; 2] = ["memtape", "memtape-load"];

/// Holds each size, or this one.
pub(crate) fn bench(ranks: Option<u64>) -> Outcome {
    let sizes = ranks.map_or(RANKS.to_vec(), |ranks| vec![ranks]);
    let mut steps = Vec::new();
    let mut held = Vec::new();
    let mut failure = build(&mut steps, &PACKAGES).err();
    for ranks in sizes.iter().filter(|_| failure.is_none()).collect::<Vec<_>>() {
        say(&format!("{ranks} ranks …\n"));
        match generate(&["hold", "--ranks", &ranks.to_string()]) {
            Ok(figures) => held.push(figures),
            Err(why) => failure = Some(why),
        }
        if failure.is_some() {
            break;
        }
    }
    let is_good = failure.is_none() && held.iter().all(is_sound);
    // The largest one stands for all; the others are beside it.
    let mut figures = held.last().cloned().unwrap_or_else(|| json!({}));
    let text = held_text(&held) + &failure.map(|why| why + "\n").unwrap_or_default();
    if held.len() > 1 {
        figures["sizes"] = json!(held);
    }
    Outcome::measured(("bench cluster", is_good), &figures, &steps, text)
}

/// Every agent uploads at the same moment.
pub(crate) fn storm(ranks: Option<u64>) -> Outcome {
    let mut steps = Vec::new();
    let ranks = ranks.unwrap_or(STORM_RANKS).to_string();
    let found = build(&mut steps, &PACKAGES).and_then(|()| {
        say(&format!("a storm of {ranks} ranks …\n"));
        generate(&["storm", "--ranks", &ranks])
    });
    let (figures, failure) = or_failure(found);
    let is_bounded = figures["rss_bytes"].as_u64() <= figures["bound_bytes"].as_u64();
    let is_whole = figures["bodies"].as_u64().is_some_and(|bodies| bodies > 0)
        && figures["bodies"] == figures["agents"];
    let is_good = failure.is_empty() && is_bounded && is_whole && figures["lost"] == 0;
    let text = storm_text(&figures) + &failure;
    Outcome::measured(("bench cluster --storm", is_good), &figures, &steps, text)
}

/// Nothing lost, and held; a size that was not held is a finding about this machine, and said.
fn is_sound(figures: &Value) -> bool {
    figures["lost"] == 0 && figures["streams_broken"] == 0
}

/// Builds these packages as they are released.
pub(crate) fn build(steps: &mut Vec<Step>, packages: &[&str]) -> Result<(), String> {
    let packages = packages.iter().flat_map(|package| ["-p", package]);
    let arguments: Vec<&str> =
        ["build", "--locked", "--release"].into_iter().chain(packages).collect();
    steps.push(run("build", cargo(&arguments)));
    let is_built = steps.last().is_some_and(|step| step.is_good);
    is_built.then_some(()).ok_or_else(|| "the build failed".to_string())
}

/// Runs the generator; its one line of figures.
pub(super) fn generate(arguments: &[&str]) -> Result<Value, String> {
    let mut generator = command(released("memtape-load"));
    generator.args(arguments).arg("--memtape").arg(released("memtape"));
    generator.stderr(std::process::Stdio::inherit());
    let (is_good, figures) = json_of(&mut generator)?;
    is_good.then_some(figures).ok_or_else(|| format!("memtape-load {} failed", arguments.join(" ")))
}

fn held_text(held: &[Value]) -> String {
    let mut text = String::from(
        "   ranks  records/s  CPU (of a core)  CPU/1,000  memory  /1,000  ack p50      p99  lost\n",
    );
    for figures in held {
        let number = |name: &str| figures[name].as_f64().unwrap_or(f64::NAN);
        let ack = |name: &str| figures["ack"][name].as_f64().unwrap_or(f64::NAN);
        text += &format!(
            "{:>8}  {:>9.0}  {:>14.1}%  {:>8.2}%  {:>3.0} MB  {:>3.0} MB  {:>4.1} ms  {:>4.1} ms  \
             {:>4}{}\n",
            number("ranks"),
            number("records_per_s"),
            number("cpu_share") * 100.0,
            number("cpu_share_per_1000_ranks") * 100.0,
            number("rss_bytes") / 1e6,
            number("rss_bytes_per_1000_ranks") / 1e6,
            ack("p50_ms"),
            ack("p99_ms"),
            number("lost"),
            if figures["held"] == true { "" } else { "  NOT HELD" },
        );
    }
    text
}

fn storm_text(figures: &Value) -> String {
    let number = |name: &str| figures[name].as_f64().unwrap_or(f64::NAN);
    format!(
        "{} agents, {} bodies, {:.0} MB in {:.1} s, {} failed, {} lost\n\
         memory {:.0} MB before, {:.0} MB at most, bound {:.0} MB\n",
        number("agents"),
        number("bodies"),
        number("body_bytes") / 1e6,
        number("seconds"),
        number("bodies_failed"),
        number("lost"),
        number("rss_before_bytes") / 1e6,
        number("rss_bytes") / 1e6,
        number("bound_bytes") / 1e6,
    )
}
