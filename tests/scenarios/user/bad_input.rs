//! An error is one line with an exit code that is not 0, and disturbs no other program.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use memtape_core::tape::layout::VERSION;
use memtape_tests::cluster::{Cluster, free_port};
use memtape_tests::memtape;

fn run(arguments: &[&str]) -> Output {
    Command::new(memtape()).args(arguments).output().expect("memtape runs")
}

/// One line on stderr that contains `expected`, nothing on stdout, exit code not 0.
fn check(output: &Output, expected: &str) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_ne!(output.status.code(), Some(0), "{expected}: {error}");
    assert_ne!(output.status.code(), None, "{expected}: it died of a signal");
    let lines: Vec<&str> = error.lines().filter(|line| !line.contains(" INFO ")).collect();
    assert_eq!(lines.len(), 1, "{expected}: {error}");
    assert!(lines[0].contains(expected), "{expected}: {error}");
    assert!(output.stdout.is_empty(), "{expected}: {}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn files_that_are_no_tapes() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, bytes: &[u8]| {
        let path = scratch.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path.to_string_lossy().into_owned()
    };
    let noise: Vec<u8> =
        (0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let header = |version: u64| {
        let mut bytes = b"MEMTAPE\0".to_vec();
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&4096u64.to_le_bytes());
        bytes.resize(4096, 0);
        bytes
    };
    for (path, expected) in [
        (write("noise.tape", &noise), "not a tape"),
        (write("empty.tape", b""), "not a tape"),
        (write("cut.tape", &header(VERSION)), "cut short"),
        (write("old.tape", &header(VERSION - 1)), "cannot be read, only version"),
        (scratch.path().join("missing").to_string_lossy().into_owned(), "missing"),
    ] {
        check(&run(&["tape", &path]), expected);
        check(&run(&["export", &path]), if expected == "not a tape" { &path } else { expected });
    }
}

#[test]
fn an_unreachable_coordinator() {
    let url = format!("http://127.0.0.1:{}", free_port());
    for command in [&["jobs"][..], &["incidents"], &["show", "inc-x"], &["capture", "job"]] {
        let arguments = [command, &["--coordinator", &url]].concat();
        check(&run(&arguments), "memtape coordinator");
    }
}

#[test]
fn a_busy_port_and_a_store_that_cannot_be_had() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let data = scratch.path().join("data").to_string_lossy().into_owned();
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let busy = holder.local_addr().expect("its address").to_string();
    check(&run(&["coordinator", "--listen", &busy, "--data-dir", &data]), &busy);

    let free = format!("127.0.0.1:{}", free_port());
    let file = scratch.path().join("file");
    std::fs::write(&file, "in the way").expect("a file");
    let file = file.to_string_lossy().into_owned();
    check(&run(&["coordinator", "--listen", &free, "--data-dir", &file]), &file);
}

#[test]
fn a_store_without_rights() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mode = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
    };
    let sealed = scratch.path().join("sealed");
    std::fs::create_dir(&sealed).expect("a folder");
    mode(scratch.path(), 0o755);
    mode(&sealed, 0o555);
    let program = scratch.path().join("memtape");
    // Copied by another process: a child that another test forks would hold a file open for writing
    // that this process writes, and such a file cannot be run.
    let copied = Command::new("cp").arg(memtape()).arg(&program).status();
    assert!(copied.is_ok_and(|status| status.success()), "a copy that every user may run");
    let mut command = Command::new(program);
    command.args(["coordinator", "--listen", &format!("127.0.0.1:{}", free_port())]);
    command.arg("--data-dir").arg(sealed.join("data"));
    // Root may write everywhere, so it becomes an unprivileged user.
    if std::fs::write(sealed.join("probe"), "").is_ok() {
        command.uid(65_534).gid(65_534);
    }
    check(&command.output().expect("memtape runs"), &sealed.to_string_lossy());
}

#[test]
fn unknown_names_and_a_second_coordinator() {
    let mut cluster = Cluster::start(&["node-a"]);
    check(&cluster.memtape(&["ranks", "no-such-job"]), "no-such-job");
    check(&cluster.memtape(&["incidents", "no-such-job"]), "no-such-job");
    check(&cluster.memtape(&["captures", "no-such-job"]), "no-such-job");
    check(&cluster.memtape(&["capture", "no-such-job"]), "no-such-job");
    check(&cluster.memtape(&["show", "inc-none"]), "inc-none");
    check(&cluster.memtape(&["show", "cap-none"]), "cap-none");
    let (free, data) = (format!("127.0.0.1:{}", free_port()), cluster.data());
    let data = data.to_string_lossy().into_owned();
    check(&cluster.memtape(&["coordinator", "--listen", &free, "--data-dir", &data]), &data);

    // Garbage beside it disturbs neither the agent nor the coordinator.
    std::fs::write(cluster.tapes("node-a").join("1-garbage.tape"), [7u8; 9000]).expect("a file");
    cluster.wait_for_agent_line("1-garbage.tape");
    assert!(cluster.memtape(&["jobs"]).status.success());
}

#[test]
fn a_command_that_cannot_be_run() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let file = scratch.path().join("file");
    std::fs::write(&file, "in the way").expect("a file");
    let file = file.to_string_lossy().into_owned();
    check(&run(&["run", "--dir", &file, "--", "true"]), &file);
    let tapes = scratch.path().join("tapes").to_string_lossy().into_owned();
    check(&run(&["run", "--dir", &tapes, "--", "no-such-command"]), "no-such-command");
    let through = run(&["run", "--dir", &tapes, "--", "sh", "-c", "exit 7"]);
    assert_eq!(through.status.code(), Some(7), "the command's own exit code comes through");
}
