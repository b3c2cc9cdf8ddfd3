//! Diagnoses of made-up jobs whose trouble is known: faults, and what is near to them and none.
//!
//! `golden/diagnoses.txt` has what is said about each, side by side, to be read by a person. It is
//! written again, after a change that is meant, by
//! `MEMTAPE_GOLDEN=make cargo test -p memtape-core --test core diagnosis`.

#[path = "diagnosing/advice.rs"]
mod advice;

#[path = "diagnosing/beyond.rs"]
mod beyond;

#[path = "diagnosing/benign.rs"]
mod benign;

#[path = "diagnosing/failures.rs"]
mod failures;

#[path = "diagnosing/faults.rs"]
mod faults;

#[path = "diagnosing/maker.rs"]
mod maker;

#[path = "diagnosing/properties.rs"]
mod properties;

use std::fmt::Write;
use std::path::Path;

use maker::Asked;
use memtape_core::detector::Layer;
use memtape_core::diagnosis::{Cause, Class, Diagnosis, Standing};

use crate::golden_files;

/// A job whose trouble is known.
struct Scenario {
    name: &'static str,
    class: Class,
    /// File and line of the culprit.
    culprit: Option<String>,
    cause: Cause,
    pages: bool,
    asked: Asked,
}

fn scenario(
    name: &'static str,
    (class, culprit, cause): (Class, Option<String>, Cause),
    pages: bool,
    asked: Asked,
) -> Scenario {
    Scenario { name, class, culprit, cause, pages, asked }
}

fn scenarios() -> Vec<Scenario> {
    let tensors = faults::all().into_iter().chain(advice::all());
    tensors.chain(benign::all()).chain(beyond::all()).chain(failures::all()).collect()
}

fn culprit(diagnosis: &Diagnosis) -> Option<String> {
    let frame = diagnosis.culprit.as_ref()?;
    let name = frame.file.rsplit('/').next().unwrap_or_default();
    Some(format!("{name}:{}", frame.line))
}

#[test]
fn every_scenario_is_diagnosed() {
    let mut wrong = String::new();
    for scenario in scenarios() {
        let said = scenario.asked.diagnosed();
        let expected = (scenario.class, scenario.culprit, scenario.cause, scenario.pages);
        let found = (said.class, culprit(&said), said.remedy.cause, said.pages());
        if found != expected {
            let _ = writeln!(
                wrong,
                "{}:\n  {found:?}\n  instead of {expected:?}\n{}",
                scenario.name,
                text(&said)
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_class_has_a_scenario() {
    let diagnosed: Vec<Class> = scenarios().iter().map(|scenario| scenario.class).collect();
    let missing: Vec<&str> = Class::ALL
        .iter()
        .filter(|class| !diagnosed.contains(class))
        .map(|class| class.as_str())
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn restarts_are_advised_for_what_grows_again_slowly() {
    for scenario in scenarios() {
        let said = scenario.asked.diagnosed();
        let helps = said.restart.answer.helps();
        match scenario.class {
            Class::Pressure | Class::Imbalance | Class::CacheThrash => {
                assert_eq!(helps, Some(false), "{}", scenario.name);
            }
            Class::OutOfMemory => {
                // What was needed is needed again; what leaked or is inactive split is given back.
                let is_needed = scenario.cause == Cause::Load;
                assert_eq!(helps, Some(!is_needed), "{}", scenario.name);
            }
            Class::Unknown | Class::Telemetry | Class::Desynchronised | Class::Died => {
                assert_eq!(helps, None, "{}", scenario.name);
            }
            Class::Leak
            | Class::ReferenceCycles
            | Class::DeferredFrees
            | Class::Fragmentation
            | Class::CompilePools
            | Class::NonTorch
            | Class::Host => {
                let others = scenario.cause == Cause::Neighbours;
                assert_eq!(helps, Some(!others), "{}", scenario.name);
                assert_eq!(said.restart.gives_back_bytes.is_some(), !others, "{}", scenario.name);
            }
        }
    }
}

/// What a person reads.
fn text(diagnosis: &Diagnosis) -> String {
    let mut text = format!("{}\n", diagnosis.sentence);
    let sure = diagnosis.confidence_ppm / 10_000;
    let urgency = match (diagnosis.pages(), diagnosis.layer) {
        (false, _) => "a notice",
        (true, Layer::Process) => "a page",
        (true, _) => "a notice until the growth is certain",
    };
    let _ = writeln!(text, "  {}, {sure} % sure, {urgency}", diagnosis.class.as_str());
    let mut say = |what: &str, lines: &[String]| {
        lines.iter().for_each(|line| {
            let _ = writeln!(text, "  {what} {line}");
        });
    };
    say("+", &diagnosis.evidence);
    say("-", &diagnosis.against);
    for other in diagnosis.alternatives.iter().skip(1) {
        let name =
            format!("{} ({})", other.class.as_str(), other.standing.as_str().replace('_', " "));
        say(&format!("or {name}: +"), &other.evidence);
        say(&format!("or {name}: -"), &other.against);
    }
    let saves = diagnosis.remedy.saves_bytes.map(memtape_core::diagnosis::bytes);
    let saves = saves.map_or(String::new(), |bytes| format!(" (saves {bytes})"));
    say("try:", &[format!("{}{saves}", diagnosis.advice)]);
    say("restart:", &[diagnosis.restart.to_string()]);
    text
}

#[test]
fn diagnosis_texts_match_the_golden_file() {
    let mut said = String::new();
    for scenario in scenarios() {
        let _ = writeln!(said, "# {}\n{}", scenario.name, text(&scenario.asked.diagnosed()));
    }
    println!("{said}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/diagnoses.txt");
    let command = "MEMTAPE_GOLDEN=make cargo test -p memtape-core --test core diagnosis";
    golden_files::check(&path, &said, command);
}

#[test]
fn the_answer_is_the_first_alternative() {
    for scenario in scenarios() {
        let said = scenario.asked.diagnosed();
        let first = said.alternatives.first().expect("there is always one");
        assert_eq!(
            (first.class, first.standing),
            (said.class, Standing::Holds),
            "{}",
            scenario.name
        );
        assert_eq!((&first.evidence, &first.against), (&said.evidence, &said.against));
        let order: Vec<Standing> = said.alternatives.iter().map(|each| each.standing).collect();
        assert!(order.is_sorted(), "{}: {order:?}", scenario.name);
    }
}
