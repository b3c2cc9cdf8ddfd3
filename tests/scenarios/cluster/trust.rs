//! Certificates, roles and the clock change under a running job: nothing of it is lost, and no one
//! is let in who has no right to.
//!
//! One real rank trains; a coordinator and an agent speak mutual TLS. Their certificates are
//! renewed, their authority is replaced, a token is revoked, and the coordinator's clock jumps by
//! 100 days, forward and back. The last needs libfaketime, and is left out where there is none.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memtape_tests::cluster::Cluster;
use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{left_out, library, memtape, torch};

const SCRIPT: &str = "tests/torch/train_ddp.py";
const JOB: &str = "trusted";
const NODE: &str = "node-a";
const PATIENCE: Duration = Duration::from_secs(60);

/// Debian's libfaketime, for programs with threads.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

#[test]
fn certificates_and_authorities_are_replaced_under_a_running_job() {
    let Some(rig) = Rig::start("certificates are replaced under a running job", &[]) else {
        return;
    };
    let token = rig.token();
    assert!(rig.is_let_in(&token));

    // Renewed by the same authority.
    rig.issue("pki", "renewed");
    rig.replace("renewed", &["tls.crt", "tls.key"]);
    rig.trains("with renewed certificates");

    // Another authority, in the usual three steps: both are trusted, the new one's certificates
    // are used, the old one is trusted no more.
    let old = rig.keep("user-admin", "old");
    assert!(rig.cluster.run(&["tls", "init", "other", "--host", "127.0.0.1"]).status.success());
    rig.issue("other", "new");
    rig.trust(&["pki", "other"]);
    rig.trains("with both authorities");
    rig.replace("new", &["tls.crt", "tls.key"]);
    rig.trains("with certificates of the new authority");
    rig.trust(&["other"]);
    rig.trains("with the new authority alone");
    std::fs::copy(rig.folder("user-admin").join("ca.crt"), old.join("ca.crt")).expect("a copy");
    wait_for("the old certificate is refused", PATIENCE, || {
        (!rig.jobs(&["--tls-dir", &text(&old)])).then_some(())
    });

    // A token is refused from the moment on in which it is revoked.
    assert!(rig.is_let_in(&token), "tokens are no matter of certificates");
    let id = token.split('_').nth(1).expect("an id").to_string();
    rig.cluster.ask(&["token", "revoke", &id]);
    assert!(!rig.is_let_in(&token));
    rig.has_lost_nothing();
}

#[test]
fn a_clock_that_jumps_by_100_days_loses_nothing_and_lets_no_one_in() {
    let scenario = "a clock that jumps under a running job";
    if !Path::new(FAKETIME).exists() {
        return left_out(scenario, "libfaketime (Debian's package faketime)");
    }
    let clock = tempfile::NamedTempFile::new().expect("a file");
    let set = |offset: &str| std::fs::write(clock.path(), offset).expect("the clock is set");
    set("+0");
    let coordinator_sees = [
        ("LD_PRELOAD".to_string(), FAKETIME.to_string()),
        ("FAKETIME_TIMESTAMP_FILE".to_string(), text(clock.path())),
        ("FAKETIME_NO_CACHE".to_string(), "1".to_string()),
        ("FAKETIME_DONT_FAKE_MONOTONIC".to_string(), "1".to_string()),
    ];
    let Some(mut rig) = Rig::start(scenario, &coordinator_sees) else { return };
    let token = rig.token();
    assert!(rig.is_let_in(&token), "valid for 30 days");

    // The certificates of the cluster are valid for 60 days, the token for 30: the jump ends both.
    set("+100d");
    wait_for("no certificate is valid any more", PATIENCE, || (!rig.jobs(&[])).then_some(()));
    assert!(!rig.is_let_in(&token));
    set("+0");
    rig.trains("after a jump forward and back");
    assert!(rig.is_let_in(&token));

    // A coordinator that started when the token had expired, and whose clock is then set back.
    rig.cluster.kill_coordinator();
    set("+40d");
    rig.cluster.start_coordinator();
    rig.trains("40 days later");
    assert!(!rig.is_let_in(&token), "it has expired");
    set("-100d");
    rig.trains("with a clock that is set back by 140 days");
    assert!(!rig.is_let_in(&token), "a clock that is set back makes it valid again");
    set("+40d");
    rig.trains("after a jump back and forward");
    rig.has_lost_nothing();
}

/// A rank that trains, and a cluster with certificates.
struct Rig {
    cluster: Cluster,
    _rank: Process,
}

impl Rig {
    fn start(scenario: &str, coordinator_sees: &[(String, String)]) -> Option<Self> {
        let torch = torch(scenario)?;
        library();
        let cluster = Cluster::start_trusted(&[NODE], coordinator_sees);
        let inner = torch.command(1, "2G");
        let mut command = Command::new(memtape());
        command.args(["run", "--job", JOB, "--dir"]).arg(cluster.tapes(NODE)).arg("--");
        command.arg(inner.get_program()).args(inner.get_args());
        command.args([SCRIPT, "--steps", "1000000"]);
        command.env("RANK", "0").env("LOCAL_RANK", "0").env("WORLD_SIZE", "1");
        command.env("MASTER_ADDR", "127.0.0.1");
        command.env("MASTER_PORT", memtape_tests::cluster::free_port().to_string());
        command.current_dir(memtape_tests::root());
        let rig = Self { cluster, _rank: Process::start(&mut command) };
        rig.trains("at first");
        Some(rig)
    }

    /// The newest step that the coordinator has goes on, and a new connection shows it.
    fn trains(&self, when: &str) {
        let mut first = None;
        wait_for(&format!("it trains {when}"), PATIENCE, || {
            let output = self.cluster.memtape(&["ranks", JOB, "--json"]);
            let ranks: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
            let rank = &ranks["ranks"][0];
            let step = rank["step"].as_u64().filter(|_| rank["alive"] == true)?;
            (step > *first.get_or_insert(step) + 5).then_some(())
        });
    }

    /// Every step that the rank has finished was reported.
    fn has_lost_nothing(&self) {
        let ranks = self.cluster.ask(&["ranks", JOB]);
        let rank = &ranks["ranks"][0];
        assert_eq!(
            (&rank["missed_steps"], &rank["lost_events"]),
            (&0.into(), &0.into()),
            "{rank:#}"
        );
        let jobs = self.cluster.ask(&["jobs"]);
        assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(1), "{jobs:#}");
    }

    fn token(&self) -> String {
        let created =
            self.cluster.ask(&["token", "create", "grafana", "--role", "viewer", "--days", "30"]);
        created["token"].as_str().expect("a token").to_string()
    }

    /// Is the list of jobs answered to one who has this token and no certificate? A refusal is that
    /// of the token or of the coordinator's own certificate, and no other failure.
    fn is_let_in(&self, token: &str) -> bool {
        let folder = self.cluster.scratch().join("without-certificate");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::copy(self.folder("user-admin").join("ca.crt"), folder.join("ca.crt"))
            .expect("a copy");
        let mut command = Command::new(memtape());
        command.args(["jobs", "--json", "--tls-dir"]).arg(folder);
        command.env("MEMTAPE_COORDINATOR", self.cluster.url()).env("MEMTAPE_TOKEN", token);
        let output = command.output().expect("memtape runs");
        let said = String::from_utf8_lossy(&output.stderr);
        let is_refused =
            ["the token is not valid", "certificate"].iter().any(|why| said.contains(why));
        assert!(output.status.success() || is_refused, "{said}");
        output.status.success()
    }

    fn jobs(&self, options: &[&str]) -> bool {
        self.cluster.memtape(&[&["jobs"], options].concat()).status.success()
    }

    /// The folder of a party's certificate that is in use.
    fn folder(&self, party: &str) -> std::path::PathBuf {
        self.cluster.scratch().join("pki").join(party)
    }

    fn keep(&self, party: &str, name: &str) -> std::path::PathBuf {
        let kept = self.cluster.scratch().join(name);
        std::fs::create_dir(&kept).expect("a folder");
        for file in ["tls.crt", "tls.key", "ca.crt"] {
            std::fs::copy(self.folder(party).join(file), kept.join(file)).expect("a copy");
        }
        kept
    }

    /// New certificates of all parties, made by the authority of a folder.
    fn issue(&self, authority: &str, out: &str) {
        let made = self.cluster.run(&[
            "tls",
            "issue",
            authority,
            "--out",
            out,
            "--agent",
            NODE,
            "--user",
            "admin",
            "--coordinator-host",
            "127.0.0.1",
        ]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    /// Puts files of other folders in place of those in use, each as a whole.
    fn replace(&self, out: &str, files: &[&str]) {
        let from = self.cluster.scratch().join(out);
        for party in PARTIES {
            for file in files {
                swap(&from.join(party).join(file), &self.folder(party).join(file));
            }
        }
    }

    /// Trusts these authorities everywhere.
    fn trust(&self, authorities: &[&str]) {
        let read = |name: &&str| {
            let file = self.cluster.scratch().join(name).join("authority").join("ca.crt");
            std::fs::read_to_string(file).expect("an authority")
        };
        let bundle: String = authorities.iter().map(read).collect();
        let file = self.cluster.scratch().join("bundle");
        std::fs::write(&file, bundle).expect("a bundle");
        for party in PARTIES {
            swap(&file, &self.folder(party).join("ca.crt"));
        }
        // Longer than the services take to look: what follows is about what they saw.
        std::thread::sleep(Duration::from_secs(6));
    }
}

const PARTIES: [&str; 3] = ["coordinator", "agent-node-a", "user-admin"];

fn swap(from: &Path, to: &Path) {
    let aside = to.with_extension("new");
    std::fs::copy(from, &aside).and_then(|_| std::fs::rename(&aside, to)).expect("it is replaced");
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
