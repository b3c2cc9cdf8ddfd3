//! `memtape analyze` and `memtape diff` as a user runs them, on recorded snapshots of PyTorch and
//! on files that are none.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Jobs to try besides, one in each folder below this one: `rank0.pickle.gz` and, for the truth,
/// `rank0.series.json` with the allocated bytes of every step.
const MORE: &str = "MEMTAPE_TEST_SNAPSHOTS";

/// Growth of a rank's allocated bytes over its steps that makes it a leak.
const LEAK_BYTES_MIN: u64 = 1 << 20;

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/data/snapshots").join(name)
}

fn ddp_ranks(ranks: &[u32]) -> Vec<PathBuf> {
    ranks.iter().map(|rank| recorded(&format!("ddp_leak_rank{rank}.pickle.gz"))).collect()
}

pub(crate) fn memtape(words: &[&str], files: &[PathBuf], stdin: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memtape"));
    command.args(words).args(files).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    // A program that needs no stdin may have ended before it was written.
    let _ = child.stdin.take().expect("a pipe").write_all(stdin);
    child.wait_with_output().expect("the program ends")
}

pub(crate) fn json(words: &[&str], files: &[PathBuf]) -> Value {
    let output = memtape(words, files, b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.starts_with("{\"verdict\":"), "{text}");
    assert_eq!(text.lines().count(), 1);
    serde_json::from_str(&text).expect("JSON")
}

fn unpacked(path: &Path) -> Vec<u8> {
    let packed = std::fs::read(path).expect("the file is there");
    let mut bytes = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(packed.as_slice());
    std::io::Read::read_to_end(&mut decoder, &mut bytes).expect("it is sound");
    bytes
}

/// The verdict is a leak of this rank at `/app/train.py:36`.
pub(crate) fn check_leak(found: &Value, rank: u32) {
    let verdict = &found["verdict"];
    assert_eq!(verdict["class"], "leak", "{verdict}");
    assert_eq!(verdict["rank"], rank);
    assert_eq!(verdict["culprit"]["file"], "/app/train.py");
    assert_eq!(verdict["culprit"]["line"], 36);
    assert_eq!(verdict["culprit"]["function"], "train_step");
    let confidence = verdict["confidence"].as_f64().expect("a number");
    assert!((0.5..1.0).contains(&confidence), "{confidence}");
    assert!(!verdict["evidence"].as_array().expect("a list").is_empty());
}

#[test]
fn a_leak_is_named_with_its_rank_and_line() {
    let found = json(&["analyze", "--json"], &ddp_ranks(&[0, 1, 2, 3]));
    check_leak(&found, 2);
    assert_eq!(found["verdict"]["bytes"], 60 * 131_072);
    assert_eq!(found["verdict"]["blocks"], 60);
    assert_eq!(found["verdict"]["ranks"], serde_json::json!([2]));
    assert_eq!(found["mode"], "across_ranks");
    check_leak(&json(&["analyze", "--json"], &ddp_ranks(&[2])), 2);
    check_leak(&json(&["analyze", "--json"], &ddp_ranks(&[2, 0])), 2);
    for healthy in [&[0][..], &[1, 3], &[0, 1, 3]] {
        let found = json(&["analyze", "--json"], &ddp_ranks(healthy));
        assert_eq!(found["verdict"], Value::Null, "{healthy:?}");
    }
    let fsdp = json(&["analyze", "--json"], &[recorded("fsdp_leak_rank1.pickle.gz")]);
    assert_eq!(fsdp["verdict"], Value::Null, "another rank of that job leaks");
}

/// Files that PyTorch 2.11 wrote of programs whose fault is known.
#[test]
fn files_of_small_programs_are_judged_as_the_programs_are() {
    let found =
        |name: &str| json(&["analyze", "--json"], &[recorded(&format!("{name}.pickle.gz"))]);
    // Layers recur as steps do: what is no step gives no all-clear.
    for name in ["forward_pass", "model_load"] {
        let verdict = &found(name)["verdict"];
        assert_eq!(verdict["class"], "cannot_judge", "{name}");
        let text = memtape(&["analyze"], &[recorded(&format!("{name}.pickle.gz"))], b"");
        let text = String::from_utf8(text.stdout).expect("UTF-8");
        assert!(text.contains("growth cannot be") && !text.contains("nothing"), "{name}: {text}");
    }
    let leaks = |name: &str, line: u32, device: u32| {
        let found = found(name);
        let verdict = &found["verdict"];
        assert_eq!(verdict["class"], "leak", "{name}: {verdict}");
        assert_eq!(verdict["bytes_per_step"], 256 << 10, "{name}: {verdict}");
        assert_eq!(verdict["culprit"]["line"], line, "{name}: {verdict}");
        assert_eq!(verdict["device"], device, "{name}: {verdict}");
    };
    // Live blocks have stacks, events have none.
    leaks("context_state", 25, 0);
    // The model is freed behind the last step.
    leaks("model_freed", 12, 0);
    // Another device than the one that holds most.
    leaks("two_devices", 12, 1);
    // A pool that the program made, and no CUDA graph.
    leaks("mempool", 25, 0);
    // Without stacks there is no line, and the batch of the last step is no growth.
    let stackless = found("context_none");
    assert_eq!(stackless["verdict"]["bytes_per_step"], 256 << 10, "{}", stackless["verdict"]);
    // What was left out is named as it was.
    for (name, context) in
        [("context_none", "context=None"), ("context_state", "context=\\\"state")]
    {
        let notes = found(name)["notes"].to_string();
        assert!(notes.contains(context) && !notes.contains("older PyTorch"), "{name}: {notes}");
    }
    let text = |name: &str| {
        let said = memtape(&["analyze"], &[recorded(&format!("{name}.pickle.gz"))], b"");
        String::from_utf8(said.stdout).expect("UTF-8")
    };
    for (name, why) in [
        ("context_none", "(no stack: the recording was made without stacks)"),
        ("context_state", "(no stack: freed, and only live blocks have stacks)"),
    ] {
        let text = text(name);
        assert!(text.contains(why) && !text.contains("a backward pass, or"), "{name}: {text}");
    }
    let text = text("two_devices");
    assert!(text.contains("device     1\n"), "{text}");
    assert!(text.contains("Rank 0, device 1, alive at the end: 5 MiB in 20 blocks"), "{text}");
    assert!(text.contains("9.13 MiB on device 0, which is judged by itself"), "{text}");
    assert!(text.contains(": nothing wrong is seen there over 19 steps\n"), "{text}");
    let row = |device: u32| format!("\n     0       {device}  ");
    assert!([0, 1].iter().all(|&device| text.contains(&row(device))), "{text}");
}

/// Files whose names have no ranks are ranks of one job only where their code is the same.
#[test]
fn files_of_different_programs_get_an_answer_each() {
    let names = ["context_state", "forward_pass", "mempool", "model_freed", "two_devices"];
    let files = names.map(|name| recorded(&format!("{name}.pickle.gz")));
    let together = json(&["analyze", "--json"], &files);
    let jobs = together["jobs"].as_array().expect("a list");
    assert_eq!(jobs.len(), names.len(), "{together}");
    for (job, file) in jobs.iter().zip(files) {
        let alone = json(&["analyze", "--json"], std::slice::from_ref(&file));
        assert_eq!(job["verdict"], alone["verdict"], "{}", file.display());
        assert_eq!(job["job"], file.to_string_lossy().as_ref());
    }
    // Two files of one program are compared, beside one of another program.
    let folder = folder_of(&[
        ("ddp_leak_rank0.pickle.gz", "a.pickle.gz"),
        ("ddp_leak_rank2.pickle.gz", "b.pickle.gz"),
        ("mempool.pickle.gz", "c.pickle.gz"),
    ]);
    let found = json(&["analyze", "--json"], &[folder.path().to_path_buf()]);
    let jobs = found["jobs"].as_array().expect("a list");
    check_leak(&jobs[0], 2);
    let modes = (&jobs[0]["mode"], &jobs[1]["mode"]);
    assert_eq!(modes, (&"across_ranks".into(), &"one_file".into()));
}

/// What is known of the steps of a file is known of its export, and no more.
#[test]
fn an_exported_file_is_judged_as_the_file_is() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, steps) in [("forward_pass", "guessed"), ("model_freed", "optimizer")] {
        let (file, to) = (recorded(&format!("{name}.pickle.gz")), folder.path().join(name));
        let output =
            memtape(&["export", "-o", &to.to_string_lossy()], std::slice::from_ref(&file), b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let [of_file, of_export] = [file, to].map(|file| json(&["analyze", "--json"], &[file]));
        for found in [&of_file, &of_export] {
            assert_eq!(found["ranks"][0]["trace"]["steps_from"], steps, "{name}");
        }
        assert_eq!(of_export["verdict"], of_file["verdict"], "{name}");
    }
}

/// The examples in `docs/analyze.md` are what is printed. `MEMTAPE_GOLDEN=make` writes them again.
#[test]
fn examples_in_the_docs_are_what_is_printed() {
    let named =
        |rank: u32| (format!("ddp_leak_rank{rank}.pickle.gz"), format!("rank{rank}.pickle.gz"));
    let names = [0, 1, 2, 3].map(named);
    let folder = folder_of(&names.each_ref().map(|(from, to)| (from.as_str(), to.as_str())));
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/analyze.md");
    let mut page = std::fs::read_to_string(&docs).expect("the page is there");
    for (shown, words) in [
        (
            "$ memtape analyze rank?.pickle.gz\n",
            vec!["analyze", "rank0", "rank1", "rank2", "rank3"],
        ),
        ("$ memtape diff rank0.pickle.gz rank2.pickle.gz\n", vec!["diff", "rank0", "rank2"]),
    ] {
        let file = |word: &&str| format!("{word}.pickle.gz");
        let mut command = Command::new(env!("CARGO_BIN_EXE_memtape"));
        command.arg(words[0]).args(words[1..].iter().map(file)).current_dir(folder.path());
        let printed = String::from_utf8(command.output().expect("it runs").stdout).expect("UTF-8");
        let start = page.find(shown).expect("the example is there") + shown.len();
        let end = start + page[start..].find("```").expect("the example ends");
        if std::env::var_os("MEMTAPE_GOLDEN").is_some() {
            page.replace_range(start..end, &printed);
            std::fs::write(&docs, &page).expect("written");
        } else {
            assert_eq!(&page[start..end], printed);
        }
    }
}

#[test]
fn the_text_fits_a_screen_and_begins_with_the_finding() {
    let output = memtape(&["analyze"], &ddp_ranks(&[0, 1, 2, 3]), b"");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        text.starts_with("rank 2 keeps 128 KiB more each step, allocated at train.py:36"),
        "{text}"
    );
    assert!(text.lines().count() <= 50, "{text}");
    let all = memtape(&["analyze", "--all"], &ddp_ranks(&[0, 1, 2, 3]), b"");
    assert!(all.stdout.len() > text.len());
    let healthy = memtape(&["analyze"], &ddp_ranks(&[0, 1, 3]), b"");
    let healthy = String::from_utf8(healthy.stdout).expect("UTF-8");
    assert!(healthy.starts_with("nothing wrong is seen in these 3 ranks"), "{healthy}");
    // Seven steps show no fragmentation, and that is said.
    let unchecked = "not checked: fragmentation that grows (16 whole steps are needed)";
    assert!(healthy.contains(unchecked), "{healthy}");
    // Neither does any file show the host and the ends of the processes.
    let absent = "memory of the host, GPU memory outside PyTorch, standstills, how the processes \
                  ended (not in the files)";
    assert!(healthy.contains(absent), "{healthy}");
    let healthy = json(&["analyze", "--json"], &ddp_ranks(&[0, 1, 3]));
    let unchecked = ["reserved", "host", "non_torch", "progress", "process"];
    assert_eq!(healthy["unchecked"], serde_json::json!(unchecked));
    let stackless = memtape(&["analyze"], &[recorded("context_none.pickle.gz")], b"");
    let stackless = String::from_utf8(stackless.stdout).expect("UTF-8");
    assert!(stackless.contains("  class      unknown\n"), "{stackless}");
}

#[test]
fn ci_can_fail_on_a_class() {
    let run = |words: &[&str], ranks: &[u32]| memtape(words, &ddp_ranks(ranks), b"").status.code();
    assert_eq!(run(&["analyze"], &[0, 1, 2, 3]), Some(0), "a found leak is no failure");
    assert_eq!(run(&["analyze", "--fail-on", "leak"], &[0, 1, 2, 3]), Some(1));
    assert_eq!(run(&["analyze", "--fail-on", "any"], &[2]), Some(1));
    assert_eq!(run(&["analyze", "--fail-on", "pressure,fragmentation"], &[2]), Some(0));
    assert_eq!(run(&["analyze", "--fail-on", "any"], &[0, 1]), Some(0));
    assert_eq!(run(&["analyze", "--fail-on", "leek"], &[0, 1]), Some(64));
}

#[test]
fn file_formats_are_detected_by_content() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = unpacked(&recorded("ddp_leak_rank2.pickle.gz"));
    let plain = folder.path().join("plain.gz");
    std::fs::write(&plain, &bytes).expect("written");
    let zstd = folder.path().join("packed.pickle");
    std::fs::write(&zstd, zstd::encode_all(bytes.as_slice(), 1).expect("packed")).expect("written");
    for file in [&plain, &zstd] {
        check_leak(&json(&["analyze", "--json"], std::slice::from_ref(file)), 0);
    }
    let output = memtape(&["analyze", "--json", "-"], &[], &bytes);
    check_leak(&serde_json::from_slice(&output.stdout).expect("JSON"), 0);
    // A folder stands for the snapshots in it and below.
    let below = folder.path().join("job/iteration_10");
    std::fs::create_dir_all(&below).expect("made");
    for rank in 0..4 {
        let from = recorded(&format!("ddp_leak_rank{rank}.pickle.gz"));
        std::fs::copy(from, below.join(format!("rank{rank}_memory_snapshot.pickle"))).expect("it");
    }
    std::fs::write(below.join("notes.txt"), "no snapshot").expect("written");
    let found = json(&["analyze", "--json"], &[folder.path().join("job")]);
    check_leak(&found, 2);
    assert_eq!(found["files"].as_array().map(Vec::len), Some(4));
}

/// A recorded file as this release would have written it; none where there is no Python.
fn of_release(release: &str, protocol: &str, rank: u32) -> Option<Vec<u8>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/data/releases.py");
    let mut python = Command::new("python3");
    python.arg(script).args([release, protocol]);
    let child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        eprintln!("left out: there is no python3 on this machine");
        return None;
    };
    let input = unpacked(&recorded(&format!("ddp_leak_rank{rank}.pickle.gz")));
    // All of the input is read before anything is written.
    child.stdin.take().expect("a pipe").write_all(&input).expect("python reads");
    let output = child.wait_with_output().expect("python ends");
    assert!(output.status.success(), "{release}, protocol {protocol}");
    Some(output.stdout)
}

#[test]
fn files_of_all_releases_give_the_same_verdict() {
    let releases = [
        ("2.1", "2", "optimizer_stacks", "time_us"),
        ("2.2", "3", "optimizer_stacks", ""),
        ("2.5", "4", "optimizer", ""),
        ("2.7", "5", "optimizer", ""),
        ("2.11", "2", "optimizer", ""),
        ("2.12", "3", "optimizer", ""),
        ("2.15", "5", "optimizer", ""),
    ];
    for (release, protocol, steps, lacks) in releases {
        let Some(leaking) = of_release(release, protocol, 2) else { return };
        let output = memtape(&["analyze", "--json", "-"], &[], &leaking);
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        check_leak(&found, 0);
        assert_eq!(found["ranks"][0]["trace"]["steps_from"], steps, "{release}");
        assert_eq!(found["files"][0]["protocol"].to_string(), protocol);
        let notes = found["notes"].to_string();
        assert_eq!(notes.contains("older PyTorch"), !lacks.is_empty(), "{release}: {notes}");
        assert!(notes.contains(lacks), "{release}: {notes}");
        let Some(healthy) = of_release(release, protocol, 0) else { return };
        let output = memtape(&["analyze", "--json", "-"], &[], &healthy);
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(found["verdict"], Value::Null, "{release}");
    }
}

#[test]
fn snapshots_of_one_rank_are_put_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    // The same rank twice, as torchtitan's folders have it: over time without an option.
    for (number, rank) in [(10, 0), (20, 1)] {
        let below = folder.path().join(format!("iteration_{number}"));
        std::fs::create_dir_all(&below).expect("made");
        let from = recorded(&format!("ddp_leak_rank{rank}.pickle.gz"));
        std::fs::copy(from, below.join("rank5_memory_snapshot.pickle")).expect("copied");
    }
    let found = json(&["analyze", "--json"], &[folder.path().to_path_buf()]);
    assert_eq!((&found["mode"], &found["rank"]), (&"over_time".into(), &5.into()));
    let found = json(&["analyze", "--json", "--over-time"], &ddp_ranks(&[0, 1]));
    assert_eq!(found["mode"], "over_time");
    // Names that say the step, and no rank, need no word either; two of one step are two ranks.
    let named = |names: [&str; 2]| {
        let of = |(name, rank): (&str, u32)| {
            let to = folder.path().join(name);
            std::fs::copy(&ddp_ranks(&[rank])[0], &to).expect("copied");
            to
        };
        json(&["analyze", "--json"], &names.into_iter().zip([0, 1]).map(of).collect::<Vec<_>>())
    };
    assert_eq!(named(["step5.pickle.gz", "step_12.pickle.gz"])["mode"], "over_time");
    assert_eq!(named(["iter900_a.pickle.gz", "iter1000.pickle.gz"])["mode"], "over_time");
    assert_eq!(named(["step5_a.pickle.gz", "step5_b.pickle.gz"])["mode"], "across_ranks");
}

#[test]
fn a_file_that_is_no_snapshot_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let pickle = unpacked(&recorded("ddp_leak_rank0.pickle.gz"));
    let packed = std::fs::read(recorded("ddp_leak_rank0.pickle.gz")).expect("it is there");
    let mut code = pickle.clone();
    code[500_000..500_012].copy_from_slice(b"cos\nsystem\n.");
    let check = |name: &str, bytes: &[u8], words: &[&str]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        let output = memtape(&["analyze"], &[path], b"");
        assert_eq!(output.status.code(), Some(1), "{name}");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(said.lines().count(), 1, "{said}");
        for word in words.iter().chain([&name]) {
            assert!(said.contains(word), "{name}: no {word:?} in {said}");
        }
        assert!(output.stdout.is_empty());
    };
    check("empty.pickle", b"", &["empty"]);
    check("page.html", b"\n <!DOCTYPE html><html>", &["web page", "_dump_snapshot"]);
    check("trace.json", b"{\"traceEvents\": []}", &["JSON", "_dump_snapshot"]);
    check("model.pt", b"PK\x03\x04....", &["zip"]);
    check("rank0.pickle.xz", b"\xfd7zXZ\0\0\x04", &["compressed by xz"]);
    check("rank0.pickle.bz2", b"BZh91AY&SY", &["compressed by bzip2"]);
    check("text", b"hello", &["not a pickle", "0x68"]);
    check("other.pickle", b"\x80\x04N.", &["not a memory snapshot"]);
    check("cut.pickle", &pickle[..pickle.len() / 2], &["ends before", "is not used"]);
    check("cut.pickle.gz", &packed[..packed.len() / 2], &["ends too early"]);
    check("evil.pickle", b"\x80\x02cos\nsystem\nU\x02id\x85R.", &["byte 2", "GLOBAL", "run code"]);
    let missing = memtape(&["analyze"], &[folder.path().join("missing")], b"");
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot open"));
    // In a folder a file that cannot be read is named, too.
    let mixed = folder_of(&[("mempool.pickle.gz", "a.pickle.gz")]);
    std::fs::write(mixed.path().join("b.pickle.xz"), b"\xfd7zXZ\0\0\x04").expect("written");
    let said = memtape(&["analyze"], &[mixed.path().to_path_buf()], b"");
    assert!(String::from_utf8_lossy(&said.stdout).contains("b.pickle.xz: compressed by xz"));
    let nothing = folder.path().join("nothing");
    std::fs::create_dir(&nothing).expect("made");
    let said = memtape(&["analyze"], &[nothing], b"");
    assert!(String::from_utf8_lossy(&said.stderr).contains("holds no snapshot"));
    drop(code);
}

#[test]
fn two_files_are_compared_line_by_line() {
    let found = json(&["diff", "--json"], &ddp_ranks(&[0, 2]));
    let top = &found["lines"][0];
    assert_eq!((&top["state"], &top["change_bytes"]), (&"new".into(), &7_864_320.into()));
    assert_eq!(top["frames"][0]["line"], 36);
    assert_eq!(found["lines"][1]["frames"][0]["line"], 29);
    assert_eq!(found["lines_differing"], 2);
    check_leak(&found, 2);
    let back = json(&["diff", "--json"], &ddp_ranks(&[2, 0]));
    assert_eq!(
        (&back["lines"][0]["state"], &back["lines"][0]["change_bytes"]),
        (&"gone".into(), &(-7_864_320).into())
    );
    // Reserved memory and peaks stand beside the lines.
    let reserved = &found["reserved"];
    assert_eq!((reserved.as_array().map(Vec::len), found["peak"].is_array()), (Some(2), true));
    // Two programs, and files without stacks; steps that are guessed say nothing of levels.
    let text_of = |names: [&str; 2]| {
        let files = names.map(|name| recorded(&format!("{name}.pickle.gz")));
        String::from_utf8(memtape(&["diff"], &files, b"").stdout).expect("UTF-8")
    };
    let text = text_of(["model_load", "forward_pass"]);
    assert!(text.starts_with("few lines hold memory in both files, as in two programs"), "{text}");
    assert!(text.contains("only in A") && !text.contains("gone"), "{text}");
    assert!(!text.contains("a step in") && !text.contains("a step needs 1"), "{text}");
    let files = ["model_load", "forward_pass"].map(|name| recorded(&format!("{name}.pickle.gz")));
    let of_programs = json(&["diff", "--json"], &files);
    let states = of_programs["lines"].to_string();
    assert!(states.contains("\"only in A\"") && !states.contains("\"gone\""), "{states}");
    let text = text_of(["context_state", "context_none"]);
    let expected = "B holds as much as A in all; B has no stacks, so lines are not compared\n";
    assert!(text.starts_with(expected), "{text}");
    assert!(!text.contains("By line") && !text.contains("gone"), "{text}");
    let same = json(&["diff", "--json"], &ddp_ranks(&[0, 1]));
    assert_eq!((&same["lines_differing"], &same["verdict"]), (&0.into(), &Value::Null));
    let output = memtape(&["diff"], &ddp_ranks(&[0, 2]), b"");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.starts_with("B holds 7.53 MiB more than A in all"), "{text}");
}

/// Every device is compared, and of files of two programs the second is judged by itself.
#[test]
fn every_device_of_two_files_is_compared() {
    let files = ["two_devices", "model_freed"].map(|name| recorded(&format!("{name}.pickle.gz")));
    let found = json(&["diff", "--json"], &files);
    assert_eq!(found["devices"], serde_json::json!([0, 0]));
    let others = found["other_devices"].as_array().expect("a list");
    assert_eq!(others.len(), 1, "{found}");
    assert_eq!(others[0]["devices"], serde_json::json!([1, null]));
    let gone = &others[0]["lines"][0];
    assert_eq!((&gone["state"], &gone["change_bytes"]), (&"gone".into(), &(-5 << 20).into()));
    let verdict = &found["verdict"];
    assert_eq!((&verdict["class"], &verdict["culprit"]["line"]), (&"leak".into(), &12.into()));
    let text = String::from_utf8(memtape(&["diff"], &files, b"").stdout).expect("UTF-8");
    assert!(text.contains("== device 1 ==\n\nB holds 5 MiB less than A"), "{text}");
    // The fault of a device stands beside the device.
    let files = ["model_freed", "two_devices"].map(|name| recorded(&format!("{name}.pickle.gz")));
    let text = String::from_utf8(memtape(&["diff"], &files, b"").stdout).expect("UTF-8");
    let (_, of_second) = text.split_once("== device 1 ==").expect("two devices");
    assert!(of_second.contains("\nleak: rank 0 keeps 256 KiB more each step"), "{text}");
}

/// A folder with recorded files under other names.
pub(crate) fn folder_of(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (from, to) in files {
        let to = folder.path().join(to);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        std::fs::copy(recorded(from), to).expect("copied");
    }
    folder
}

#[test]
fn ranks_of_different_jobs_are_not_compared() {
    let folder = folder_of(&[
        ("ddp_leak_rank0.pickle.gz", "a/rank0.pickle.gz"),
        ("ddp_leak_rank1.pickle.gz", "a/rank1.pickle.gz"),
        ("ddp_leak_rank2.pickle.gz", "a/rank2.pickle.gz"),
        ("fsdp_leak_rank1.pickle.gz", "b/rank1.pickle.gz"),
    ]);
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    for files in [vec![a.clone(), b.clone()], vec![folder.path().to_path_buf()]] {
        let output = memtape(&["analyze", "--json"], &files, b"");
        assert!(output.status.success());
        let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let jobs = found["jobs"].as_array().expect("a list");
        assert_eq!(jobs.len(), 2, "{found}");
        check_leak(&jobs[0], 2);
        assert_eq!(jobs[0]["job"], a.to_string_lossy().as_ref());
        assert_eq!((&jobs[1]["verdict"], &jobs[1]["mode"]), (&Value::Null, &"one_file".into()));
        let text = memtape(&["analyze"], &files, b"");
        let text = String::from_utf8(text.stdout).expect("UTF-8");
        assert_eq!(text.lines().filter(|line| line.starts_with("== ")).count(), 2, "{text}");
        let failing = memtape(&["analyze", "--fail-on", "leak"], &files, b"");
        assert_eq!(failing.status.code(), Some(1));
    }
    // A file that cannot be read, or has no rank, does not hide that there are two jobs.
    let folder = folder_of(&[
        ("ddp_leak_rank0.pickle.gz", "a_step100/rank0.pickle.gz"),
        ("ddp_leak_rank2.pickle.gz", "a_step100/rank2.pickle.gz"),
        ("ddp_leak_rank1.pickle.gz", "b_step100/rank1.pickle.gz"),
        ("ddp_leak_rank3.pickle.gz", "b_step100/final.pickle.gz"),
    ]);
    std::fs::write(folder.path().join("b_step100/rank0.pickle.gz"), "broken").expect("written");
    let output = memtape(&["analyze", "--json"], &[folder.path().to_path_buf()], b"");
    assert_eq!(output.status.code(), Some(1), "one file is left out");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    check_leak(&found, 2);
    assert_eq!(found["jobs"].as_array().map(Vec::len), Some(2), "{found}");
    // Folders that are nothing but a rank or a step are no jobs.
    let folder = folder_of(&[
        ("ddp_leak_rank0.pickle.gz", "iteration_10/rank-0/memory.pickle.gz"),
        ("ddp_leak_rank2.pickle.gz", "iteration_10/rank-2/memory.pickle.gz"),
    ]);
    check_leak(&json(&["analyze", "--json"], &[folder.path().to_path_buf()]), 2);
}

#[test]
fn a_broken_file_is_left_out_and_the_rest_is_judged() {
    let folder = folder_of(&[
        ("ddp_leak_rank0.pickle.gz", "rank0.pickle.gz"),
        ("ddp_leak_rank2.pickle.gz", "rank2.pickle.gz"),
    ]);
    let packed = std::fs::read(recorded("ddp_leak_rank1.pickle.gz")).expect("it is there");
    let broken = folder.path().join("rank1.pickle.gz");
    std::fs::write(&broken, &packed[..packed.len() / 2]).expect("written");
    let output = memtape(&["analyze", "--json"], &[folder.path().to_path_buf()], b"");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(said.contains("1 of 3 files could not be read"), "{said}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    check_leak(&found, 2);
    assert_eq!(found["left_out"][0]["path"], broken.to_string_lossy().as_ref());
    let text = memtape(&["analyze"], &[folder.path().to_path_buf()], b"");
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    assert!(text.contains("Left out") && text.contains("ends too early"), "{text}");
}

/// A snapshot whose device traces are empty.
fn without_history(pickle: &[u8]) -> Option<Vec<u8>> {
    let script = "import pickle, sys\n\
        found = pickle.load(sys.stdin.buffer)\n\
        found['device_traces'] = [[] for _ in found['device_traces']]\n\
        sys.stdout.buffer.write(pickle.dumps(found))";
    let mut python = Command::new("python3");
    python.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().ok()?;
    child.stdin.take()?.write_all(pickle).ok()?;
    let output = child.wait_with_output().ok()?;
    output.status.success().then_some(output.stdout)
}

#[test]
fn files_without_history_are_not_judged() {
    let pickle = unpacked(&recorded("ddp_leak_rank2.pickle.gz"));
    let Some(bare) = without_history(&pickle) else {
        println!("left out: needs python3");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rank2.pickle");
    std::fs::write(&path, bare).expect("written");
    let files = [path];
    let found = json(&["analyze", "--json"], &files);
    assert_eq!(found["verdict"]["class"], "cannot_judge", "{}", found["verdict"]);
    let advice = found["verdict"]["advice"].as_str().expect("a text");
    assert!(advice.contains("_record_memory_history"), "{advice}");
    let text = String::from_utf8(memtape(&["analyze"], &files, b"").stdout).expect("UTF-8");
    assert!(
        text.starts_with("cannot judge this file") && !text.contains("nothing wrong"),
        "{text}"
    );
    // Beside a rank with history it is still not judged.
    let beside = [ddp_ranks(&[0]), files.to_vec()].concat();
    let found = json(&["analyze", "--json"], &beside);
    assert_eq!(found["verdict"]["class"], "cannot_judge", "{}", found["verdict"]);
    let fails = |on: &str| memtape(&["analyze", "--fail-on", on], &files, b"").status.code();
    assert_eq!((fails("cannot_judge"), fails("any"), fails("leak")), (Some(1), Some(1), Some(0)));
}

/// Ranks whose allocated bytes grow over their steps, by what was measured beside.
fn truth(folder: &Path) -> Option<Vec<u64>> {
    let mut leaking = Vec::new();
    for rank in 0.. {
        let series = folder.join(format!("rank{rank}.series.json"));
        let Ok(text) = std::fs::read_to_string(series) else { break };
        let value: Value = serde_json::from_str(&text).expect("JSON");
        let steps = value["series"].as_array().expect("a list").clone();
        let at = |step: usize| steps[step][1].as_u64().expect("bytes");
        if at(steps.len() - 1) > at(2) + LEAK_BYTES_MIN {
            leaking.push(rank);
        }
    }
    folder.join("rank0.series.json").exists().then_some(leaking)
}

#[test]
fn jobs_are_judged_as_their_series_are() {
    let Some(folder) = std::env::var_os(MORE) else {
        println!("set {MORE} to a folder with jobs for more");
        return;
    };
    let mut jobs = 0;
    for entry in std::fs::read_dir(folder).expect("the folder can be listed") {
        let job = entry.expect("an entry").path();
        let Some(leaking) = truth(&job) else { continue };
        jobs += 1;
        let found = json(&["analyze", "--json"], std::slice::from_ref(&job));
        let verdict = &found["verdict"];
        match leaking.as_slice() {
            [] => assert_eq!(verdict, &Value::Null, "{}", job.display()),
            [rank, ..] => {
                assert_eq!(
                    (&verdict["class"], &verdict["rank"]),
                    (&"leak".into(), &(*rank).into())
                );
                let line = &verdict["culprit"]["file"];
                assert_eq!(line, "/app/train.py", "{}", job.display());
            }
        }
    }
    assert!(jobs > 0, "no job with series in {MORE}");
}
