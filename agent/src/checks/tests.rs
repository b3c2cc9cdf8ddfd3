//! A client, a real socket, and readings that are made up: the clock of the check is the test's.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memtape_core::limits::{NODE_CHECK_CONNECTIONS_MAX, NODE_CHECK_REQUEST_BYTES_MAX};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::authority::tests::request;
use super::gpu_memory::{GpuMemory, Question};
use super::service::{Counts, SocketError, Tally, bind, serve};
use super::wire::client::{ask, channel};
use crate::node::nvml::{Gpu, NoReading, Reading};

const GIB: u64 = 1 << 30;

const SECOND_NS: u64 = 1_000_000_000;

/// The rank's pid.
const PID: u32 = 7;

/// What NVRx 0.7 asks for.
const ARGS: [&str; 6] = ["--no-slurm", "--group", "prolog", "epilog", "logs", "gpu"];

/// What the driver says in a second.
#[derive(Clone, Copy, Debug)]
enum Says {
    /// GiB in use, and whether the rank computes.
    Gpu(u64, bool),
    /// The same as a second before.
    Nothing,
    /// There is none.
    NoDriver,
}

use Says::{NoDriver, Nothing};

const IDLE: Says = Says::Gpu(1, false);
const BUSY: Says = Says::Gpu(70, true);
const LEFT: Says = Says::Gpu(41, false);

fn reading(begun_ns: u64, used_gib: u64, is_busy: bool) -> Reading {
    let gpu = Gpu {
        uuid: "GPU-a".to_string(),
        index: 0,
        total_bytes: 80 * GIB,
        used_bytes: used_gib * GIB,
        free_bytes: (80 - used_gib) * GIB,
        processes: Some(u32::from(is_busy)),
    };
    let processes = is_busy.then(|| ((PID, "gpu-a".to_string()), GIB)).into_iter().collect();
    Reading { begun_ns, gpus: vec![gpu], processes }
}

/// The agent's loop: what the driver says before each question, and after it; no second takes time.
async fn play(mut questions: mpsc::Receiver<Question>, before: Vec<Says>, after: Vec<Says>) {
    let (mut check, mut now_ns) = (GpuMemory::default(), SECOND_NS);
    let (mut newest, pids) = (Err(NoReading::NotYet), BTreeSet::from([PID]));
    let mut look = |check: &mut GpuMemory, says: Says, now_ns: &mut u64| {
        *now_ns += SECOND_NS;
        match says {
            Says::Gpu(used, is_busy) => newest = Ok(reading(*now_ns, used, is_busy)),
            Nothing => {}
            NoDriver => newest = Err(NoReading::NoDriver),
        }
        check.look(*now_ns, newest.as_ref(), &pids);
    };
    before.iter().for_each(|says| look(&mut check, *says, &mut now_ns));
    while let Some(question) = questions.recv().await {
        check.ask(now_ns, question);
        after.iter().for_each(|says| look(&mut check, *says, &mut now_ns));
    }
}

/// A socket with a loop behind it.
struct Served {
    folder: TempDir,
    path: PathBuf,
    tally: Tally,
}

impl Served {
    async fn start(before: &[Says], after: &[Says]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("health.sock");
        let listener = bind(&path).await.expect("a socket");
        let (sender, questions) = mpsc::channel(4);
        let tally = Tally::default();
        tokio::spawn(serve(listener, sender, tally.clone()));
        tokio::spawn(play(questions, before.to_vec(), after.to_vec()));
        Self { folder, path, tally }
    }

    /// Asks once; whether the node may join, the verdict and the details.
    async fn ask(&self) -> (bool, String, String) {
        let (joins, output) = ask(channel(&self.path), &ARGS).await.expect("an answer");
        assert_eq!(output["fail_count"] == 0, joins, "{output}");
        let text = |of: &serde_json::Value| of.as_str().expect("a text").to_string();
        (joins, text(&output["verdict"]), text(&output["details"][0]))
    }
}

/// What the driver says before and after the question; whether the node may join, the verdict, and
/// a part of the details.
type Case<'a> = (&'a [Says], &'a [Says], bool, &'a str, &'a str);

#[tokio::test]
async fn a_client_is_answered_what_is_known() {
    let grace = [LEFT; 21];
    let cases: &[Case] = &[
        (&[IDLE], &[IDLE], true, "healthy", "GPU-a, which holds 1 GiB"),
        (&[IDLE, BUSY], &[LEFT, LEFT, IDLE], true, "healthy", "GPU-a, which holds 1 GiB"),
        (&[IDLE, BUSY], &grace, false, "failed", "GPU-a holds 40 GiB more than before"),
        (&[BUSY], &[LEFT], true, "unknown", "is not known"),
        (&[NoDriver], &[NoDriver], true, "unknown", "no NVIDIA driver is found on this node"),
        // The driver is slow: what it said before the question counts for nothing.
        (&[IDLE], &[Nothing, Nothing, BUSY], true, "healthy", "its memory is not judged"),
        (&[IDLE, BUSY, IDLE], &[Nothing; 46], true, "unknown", "NVML has not answered since"),
    ];
    for (before, after, joins, verdict, detail) in cases {
        let served = Served::start(before, after).await;
        let answer = served.ask().await;
        assert_eq!((answer.0, answer.1.as_str()), (*joins, *verdict), "{before:?}: {answer:?}");
        assert!(answer.2.contains(detail), "{before:?}: {answer:?}");
        let Counts { healthy, failed, unknown, connections, requests, .. } = served.tally.counts();
        assert_eq!((healthy + failed + unknown, connections + requests), (1, 0));
    }
}

/// NVRx' client names the socket as the authority of its request, which hyper alone refuses.
#[tokio::test]
async fn the_request_of_nvrx_is_taken() {
    let served = Served::start(&[IDLE], &[IDLE]).await;
    let mut stream = UnixStream::connect(&served.path).await.expect("a connection");
    let authority = served.path.display().to_string().replace('/', "%2F");
    stream.write_all(&request(&authority)).await.expect("a request");
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    let answer = b"\"fail_count\":0";
    while !said.windows(answer.len()).any(|text| text == answer) {
        let count = stream.read(&mut piece).await.expect("an answer");
        assert!(count > 0, "{}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&piece[..count]);
    }
    assert_eq!(served.tally.counts().healthy, 1);
}

async fn refused(path: &Path) -> String {
    let error = bind(path).await.expect_err("it is not to be replaced").to_string();
    assert!(!error.contains('\n') && error.contains("--health-socket"), "{error}");
    error
}

#[tokio::test]
async fn only_a_socket_without_a_server_is_replaced() {
    let served = Served::start(&[IDLE], &[IDLE]).await;
    let dir = served.folder.path();
    assert!(refused(&served.path).await.contains("another server listens"));
    assert_eq!(served.ask().await.1, "healthy", "the server goes on");

    let stale = dir.join("stale.sock");
    drop(UnixListener::bind(&stale).expect("a socket"));
    let bound = bind(&stale).await.expect("a stale one is replaced");
    let mode = std::fs::metadata(&stale).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o666, "{mode:o}");
    drop(bound);

    let file = dir.join("file");
    std::fs::write(&file, "precious").expect("a file");
    assert!(refused(&file).await.contains("is no socket"));
    assert_eq!(std::fs::read(&file).expect("a file"), b"precious");
    // A link is not followed, wherever it leads.
    for (name, target) in [("to-stale", &stale), ("to-file", &file), ("to-nothing", &dir.join("x"))]
    {
        let link = dir.join(name);
        symlink(target, &link).expect("a link");
        assert!(refused(&link).await.contains("is no socket"), "{name}");
        assert!(std::fs::symlink_metadata(&link).is_ok_and(|of| of.is_symlink()), "{name}");
    }
    assert!(stale.exists() && !dir.join("x").exists());
    assert!(refused(&dir.join("absent/health.sock")).await.contains("cannot be listened on"));
    let open = dir.join("open");
    std::fs::create_dir(&open).expect("a folder");
    // In a sticky folder, as /tmp is, another user can make it first.
    for mode in [0o777, 0o1777, 0o775] {
        std::fs::set_permissions(&open, Permissions::from_mode(mode)).expect("a mode");
        let error = bind(&open.join("health.sock")).await.expect_err("not of this user alone");
        assert!(matches!(error, SocketError::Replaceable { .. }), "{mode:o}: {error}");
    }
}

/// Clients that say nothing, ask for too much, or leave: the next one is answered.
#[tokio::test]
async fn a_flood_is_bounded_and_counted() {
    let served = Served::start(&[IDLE], &[IDLE]).await;
    let mut silent = Vec::new();
    for _ in 0..NODE_CHECK_CONNECTIONS_MAX + 8 {
        silent.push(UnixStream::connect(&served.path).await.expect("a connection"));
    }
    assert_eq!(served.ask().await.1, "healthy");
    assert!(served.tally.counts().connections >= 9, "{:?}", served.tally.counts());
    drop(silent);

    let long = "x".repeat(NODE_CHECK_REQUEST_BYTES_MAX);
    let status = ask(channel(&served.path), &[&long]).await.expect_err("too large");
    assert_eq!(status.code(), tonic::Code::OutOfRange, "{status}");
    assert_eq!(served.tally.counts().requests, 1);
    for _ in 0..100 {
        let asking = tokio::spawn(ask(channel(&served.path), &["--leave"]));
        tokio::task::yield_now().await;
        asking.abort();
    }
    assert_eq!(served.ask().await.1, "healthy");
}

/// The loop hangs: clients that wait and leave are bounded by the questions that it may have.
#[tokio::test]
async fn a_client_that_leaves_takes_its_question_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("health.sock");
    let (sender, mut questions) = mpsc::channel::<Question>(256);
    tokio::spawn(serve(bind(&path).await.expect("a socket"), sender, Tally::default()));
    let asking = tokio::spawn({
        let channel = channel(&path);
        async move { ask(channel, &ARGS).await }
    });
    let question = questions.recv().await.expect("a question");
    let mut check = GpuMemory::default();
    check.ask(SECOND_NS, question);
    assert_eq!(check.next_ns(), SECOND_NS / 4, "it is looked at soon");
    asking.abort();
    // The agent forgets it when the server has seen that the client is gone.
    for _ in 0..1500 {
        check.look(0, Err(&NoReading::NotYet), &BTreeSet::new());
        if check.next_ns() == SECOND_NS {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("the question stays");
}
