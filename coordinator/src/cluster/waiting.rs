//! Who waits to take over: a waiting coordinator says so in an object of the bucket, and an owner
//! reads these objects, for people who ask.
//!
//! The object goes when the coordinator ends in order, or comes to own a shard. That of one that
//! was killed stays, and counts no more after its time; an owner removes it later. Nothing else
//! rests on these objects: what cannot be written or read is tried again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use memtape_core::limits::WAITING_READ_MAX;
use memtape_core::placement::Owner;
use memtape_core::waiting::{WaitingNote, WaitingWatch};
use memtape_disk::clock;
use memtape_store::Result;
use memtape_store::cluster::waiting::WaitingNotes;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::standing::{Standing, Waiting};

/// Time for the removal of the object when the coordinator ends.
const END_TIME: Duration = Duration::from_secs(2);

/// Old objects that one poll removes; the next one removes further ones.
const REMOVED_MAX: usize = 16;

/// The object of a coordinator that may come to wait.
#[derive(Debug)]
pub(crate) struct Announcement {
    notes: WaitingNotes,
    note: WaitingNote,
    every: Duration,
    ends: CancellationToken,
    writing: Mutex<Option<JoinHandle<()>>>,
}

impl Announcement {
    /// Writes nothing yet.
    pub(crate) fn new(notes: WaitingNotes, owner: &Owner, every: Duration) -> Self {
        let note = WaitingNote {
            process: owner.process.clone(),
            address: owner.address.clone(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            renewals: 0,
        };
        let (ends, writing) = (CancellationToken::new(), Mutex::default());
        Self { notes, note, every, ends, writing }
    }

    /// Writes the object again and again, until the announcement ends. A second call is harmless.
    pub(crate) fn begin(&self) {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        writing.get_or_insert_with(|| {
            let (notes, note) = (self.notes.clone(), self.note.clone());
            tokio::spawn(announce(notes, note, self.every, self.ends.clone()))
        });
    }

    /// Ends the announcement, and lets the object be removed.
    pub(crate) fn end(&self) {
        self.ends.cancel();
    }

    /// Ends the announcement, and waits for the removal, for a limited time.
    pub(crate) async fn end_in_order(&self) {
        self.end();
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writing) = writing {
            // An object that is left counts no more after its time.
            let _ = timeout(END_TIME, writing).await;
        }
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        self.end();
    }
}

async fn announce(
    notes: WaitingNotes,
    mut note: WaitingNote,
    every: Duration,
    ends: CancellationToken,
) {
    while !ends.is_cancelled() {
        if let Err(why) = notes.write(&note).await {
            tracing::debug!("it is not noted that this coordinator waits: {why}");
        }
        note.renewals += 1;
        // A write that was sent is over before the removal.
        tokio::select! {
            () = ends.cancelled() => {}
            () = sleep(every) => {}
        }
    }
    if let Err(why) = notes.remove(&note.process).await {
        tracing::debug!("the note that this coordinator waited is not removed: {why}");
    }
}

/// Reads again and again who waits.
pub(crate) async fn watch(notes: WaitingNotes, standing: Standing, every: Duration) {
    let (mut watch, mut known) = (WaitingWatch::default(), BTreeMap::new());
    loop {
        match poll_waiting(&notes, &mut watch, &mut known, clock::now().mono_ns).await {
            Ok(waiting) => standing.set_waiting(waiting),
            Err(why) => standing.set_waiting_unknown(why.to_string()),
        }
        sleep(every).await;
    }
}

/// Lists the objects, reads those of coordinators that wait and are not known yet, and removes old
/// ones. `now_ns` is the time by the monotonic clock.
async fn poll_waiting(
    notes: &WaitingNotes,
    watch: &mut WaitingWatch,
    known: &mut BTreeMap<String, WaitingNote>,
    now_ns: u64,
) -> Result<Waiting> {
    watch.listed(now_ns, notes.list().await?);
    let (mut waiting, mut read) = (Waiting::default(), BTreeMap::new());
    let listed = watch.waiting(now_ns);
    waiting.left_out = listed.len().saturating_sub(WAITING_READ_MAX) as u64;
    for (name, age_ns) in listed.into_iter().take(WAITING_READ_MAX) {
        let note = match known.remove(name) {
            Some(note) => Some(note),
            None => notes.read(name).await?,
        };
        // None where the object went since it was listed.
        if let Some(note) = note {
            read.insert(name.to_string(), note.clone());
            waiting.notes.push((note, now_ns.saturating_sub(age_ns)));
        }
    }
    *known = read;
    for name in watch.abandoned(now_ns).into_iter().take(REMOVED_MAX) {
        // The next poll tries again.
        if let Err(why) = notes.remove(&name).await {
            tracing::debug!("the note of the coordinator {name} is not removed: {why}");
        }
    }
    Ok(waiting)
}

#[cfg(test)]
mod tests {
    use memtape_bucket::{BUCKET, Fault, Rule, Server};
    use memtape_core::waiting::WAITING_REMOVED_AFTER_NS;
    use memtape_store::bucket::Bucket;

    use super::*;

    const SOON: Duration = Duration::from_millis(50);

    struct Rig {
        server: Server,
        bucket: Bucket,
    }

    impl Rig {
        async fn new() -> Self {
            let _ = rustls::crypto::ring::default_provider().install_default();
            let server = Server::start().await;
            let settings = server.settings("a");
            let url = format!("s3://{BUCKET}/cluster");
            let bucket = Bucket::with_few_retries(&url, settings).unwrap();
            Self { server, bucket }
        }

        fn notes(&self) -> WaitingNotes {
            WaitingNotes::new(&self.bucket)
        }

        fn announcement(&self, name: &str) -> Announcement {
            let (process, address) = (name.to_string(), format!("http://{name}:7771"));
            let owner = Owner { process, address, ..Owner::default() };
            Announcement::new(self.notes(), &owner, SOON)
        }

        /// Polls as if it were later by this time.
        async fn poll(
            &self,
            watch: &mut WaitingWatch,
            known: &mut BTreeMap<String, WaitingNote>,
            later_ns: u64,
        ) -> Waiting {
            let now_ns = clock::now().mono_ns + later_ns;
            poll_waiting(&self.notes(), watch, known, now_ns).await.unwrap()
        }

        /// Waits until these are shown as waiting.
        async fn shows(&self, watch: &mut WaitingWatch, expected: &[&str]) -> Waiting {
            let mut known = BTreeMap::new();
            loop {
                let waiting = self.poll(watch, &mut known, 0).await;
                let shown = waiting.notes.iter().map(|(note, _)| note.process.as_str());
                if shown.collect::<Vec<_>>() == expected {
                    return waiting;
                }
                sleep(SOON).await;
            }
        }
    }

    #[tokio::test]
    async fn a_coordinator_is_shown_while_it_waits() {
        let (rig, mut watch) = (Rig::new().await, WaitingWatch::default());
        // Left by a process that was killed before.
        rig.notes().write(&rig.announcement("killed").note).await.unwrap();
        let [a, b] = ["a", "b"].map(|name| rig.announcement(name));
        rig.shows(&mut watch, &[]).await;
        a.begin();
        a.begin();
        b.begin();
        let waiting = rig.shows(&mut watch, &["a", "b"]).await;
        let WaitingNote { address, version, .. } = &waiting.notes[0].0;
        assert_eq!(
            (address.as_str(), version.as_str()),
            ("http://a:7771", env!("CARGO_PKG_VERSION"))
        );
        a.end_in_order().await;
        assert!(!rig.server.keys().contains(&"cluster/waiting/a".to_string()));
        rig.shows(&mut watch, &["b"]).await;
        b.end();
        rig.shows(&mut watch, &[]).await;
        assert_eq!(rig.server.keys(), ["cluster/waiting/killed"]);
    }

    #[tokio::test]
    async fn objects_that_do_not_change_are_removed_after_ten_minutes() {
        let (rig, mut watch, mut known) =
            (Rig::new().await, WaitingWatch::default(), BTreeMap::new());
        for number in 0..=REMOVED_MAX {
            rig.notes().write(&rig.announcement(&format!("n{number:03}")).note).await.unwrap();
        }
        rig.poll(&mut watch, &mut known, 0).await;
        // A minute before its end, and the time that the test takes.
        rig.poll(&mut watch, &mut known, WAITING_REMOVED_AFTER_NS - 60_000_000_000).await;
        assert_eq!(rig.server.keys().len(), REMOVED_MAX + 1);
        // An object that cannot be removed does not hide who waits.
        let method = Some("POST".parse().unwrap());
        rig.server.add_rule(Rule { method, ..Rule::of("a", Fault::Denied) });
        rig.notes().write(&rig.announcement("b").note).await.unwrap();
        let waiting = rig.poll(&mut watch, &mut known, WAITING_REMOVED_AFTER_NS).await;
        assert_eq!(waiting.notes[0].0.process, "b");
        assert_eq!(rig.server.keys().len(), REMOVED_MAX + 2);
        rig.server.clear_faults();
        rig.poll(&mut watch, &mut known, WAITING_REMOVED_AFTER_NS).await;
        let last = format!("cluster/waiting/n{REMOVED_MAX:03}");
        assert_eq!(rig.server.keys(), ["cluster/waiting/b", &last], "no more at once");
        rig.poll(&mut watch, &mut known, WAITING_REMOVED_AFTER_NS).await;
        assert_eq!(rig.server.keys(), ["cluster/waiting/b"]);
    }

    #[tokio::test]
    async fn sixty_four_are_read_and_the_others_counted() {
        let (rig, mut watch) = (Rig::new().await, WaitingWatch::default());
        rig.shows(&mut watch, &[]).await;
        for number in 0..WAITING_READ_MAX + 3 {
            let name = format!("n{number:03}");
            rig.notes().write(&rig.announcement(&name).note).await.unwrap();
        }
        // What another program wrote there.
        rig.server.put("cluster/waiting/m", "no note");
        let before = rig.bucket.requests().unwrap().counts();
        let mut known = BTreeMap::new();
        let waiting = rig.poll(&mut watch, &mut known, 0).await;
        assert_eq!((waiting.notes.len(), waiting.left_out), (WAITING_READ_MAX - 1, 4));
        // Each is read once, and one list shows the changes.
        rig.poll(&mut watch, &mut known, 0).await;
        let counts = rig.bucket.requests().unwrap().counts();
        assert_eq!(counts.lists - before.lists, 2);
        assert_eq!(counts.gets - before.gets, WAITING_READ_MAX as u64 + 1, "twice what is none");
    }
}
