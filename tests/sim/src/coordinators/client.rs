//! The way of one coordinator to the bucket, as SlateDB and the hint use it.
//!
//! What becomes of a request is drawn when it is sent: it is refused, lost, slow, or its answer is
//! lost, after which the client may repeat it, as the client of S3 does. A client that was given
//! up must send nothing any more below `shards/`.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use tokio::sync::oneshot;
use tokio_stream::{Stream, StreamExt as _};

use crate::coordinators::bucket::{Objects, SimulatedBucket, Travels, at_once};
use crate::coordinators::script::Weather;
use crate::coordinators::work::Process;
use crate::plan::MS_NS;

/// The longest time that a late request takes.
const LATE_NS_MAX: u64 = 20_000 * MS_NS;

/// A stream as `object_store` hands it out.
type Parts<T> = Pin<Box<dyn Stream<Item = Result<T>> + Send>>;

/// A request that waits for its answer.
type Waits<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// The client; clones are handles of the same.
#[derive(Clone, Debug)]
pub(crate) struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bucket: SimulatedBucket,
    process: Arc<Process>,
    is_ended: AtomicBool,
}

/// What becomes of a request: when it arrives, and when there is an answer.
struct Fate {
    arrives_ns: Vec<u64>,
    ends_ns: u64,
    is_lost: bool,
}

/// The request failed, and may have been carried out.
#[derive(Debug)]
struct Failed;

impl Client {
    pub(crate) fn new(bucket: SimulatedBucket, process: Arc<Process>) -> Self {
        Self(Arc::new(Inner { bucket, process, is_ended: AtomicBool::new(false) }))
    }

    /// The shard that it was for was given up.
    pub(crate) fn end(&self) {
        self.0.is_ended.store(true, Relaxed);
    }

    /// Sends a request; waits for its answer.
    fn request<T: Send + 'static>(
        &self,
        path: Option<&Path>,
        work: impl Fn(&mut Objects) -> Result<T> + Send + 'static,
    ) -> Waits<T> {
        let Inner { bucket, process, is_ended } = &*self.0;
        if is_ended.load(Relaxed) && path.is_some_and(|path| path.as_ref().contains("/shards/")) {
            process.history.breaks("a shard that was given up sent a request");
        }
        let now_ns = process.clock.now_ns();
        let fate = process
            .draw(|rng| Fate::draw(bucket.weather(), bucket.is_cut(process.machine), now_ns, rng));
        let done = Arc::new(Mutex::new(None));
        let work = Arc::new(Mutex::new(work));
        for arrives_ns in fate.arrives_ns {
            let (done, work) = (done.clone(), work.clone());
            let request = move |objects: &mut Objects| {
                let (Ok(mut done), Ok(work)) = (done.lock(), work.lock()) else { return };
                objects.requests += 1;
                *done = Some(work(objects));
            };
            bucket.send(arrives_ns, Travels::Request(Box::new(request)));
        }
        let (answers, answered) = oneshot::channel();
        let (asker, ends_ns) = (process.clone(), fate.ends_ns);
        let path = path.cloned().unwrap_or_default();
        let answer = move |is_lost: bool| {
            let done = done.lock().ok().and_then(|mut done| done.take());
            let done = done.filter(|_| !is_lost).unwrap_or_else(|| Err(failed()));
            asker.trace_at(ends_ns, format_args!("asked for {path}: {:?}", done.as_ref().err()));
            // The client may have given it up.
            let _ = answers.send(done);
        };
        let (to, is_lost, answer) = (process.machine, fate.is_lost, Box::new(answer));
        bucket.send(fate.ends_ns, Travels::Answer { to, is_lost, answer });
        process.clock.shorten(fate.ends_ns);
        Box::pin(async { answered.await.unwrap_or_else(|_| Err(failed())) })
    }
}

impl Fate {
    fn draw(weather: Weather, is_cut: bool, now_ns: u64, rng: &mut fastrand::Rng) -> Self {
        let way_ns = rng.u64(MS_NS..=weather.way_ns_max);
        let fails = |ends_ns| Self { arrives_ns: Vec::new(), ends_ns, is_lost: true };
        if is_cut {
            return fails(now_ns + if rng.bool() { way_ns } else { weather.patience_ns });
        }
        let mut happens = |percent| rng.u8(0..100) < percent;
        if happens(weather.unavailable) {
            return fails(now_ns + 2 * way_ns);
        }
        if happens(weather.silent) {
            return fails(now_ns + weather.patience_ns);
        }
        if happens(weather.answer_lost) {
            let (first_ns, again_ns) = (now_ns + way_ns, now_ns + 3 * way_ns);
            let ends_ns = now_ns + 4 * way_ns;
            return match rng.u8(0..3) {
                0 => Self { arrives_ns: vec![first_ns], ends_ns, is_lost: true },
                1 => {
                    let ends_ns = now_ns + weather.patience_ns;
                    Self { arrives_ns: vec![first_ns], ends_ns, is_lost: true }
                }
                _ => Self { arrives_ns: vec![first_ns, again_ns], ends_ns, is_lost: false },
            };
        }
        let late_ns = if happens(weather.late) { rng.u64(0..LATE_NS_MAX) } else { 0 };
        let arrives_ns = now_ns + way_ns + late_ns;
        let (answered_ns, patience_ns) = (arrives_ns + way_ns, now_ns + weather.patience_ns);
        let is_lost = answered_ns > patience_ns;
        Self { arrives_ns: vec![arrives_ns], ends_ns: answered_ns.min(patience_ns), is_lost }
    }
}

fn failed() -> Error {
    Error::Generic { store: "simulated", source: Box::new(Failed) }
}

impl fmt::Display for Failed {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("the request failed")
    }
}

impl std::error::Error for Failed {}

impl fmt::Display for Client {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("the simulated bucket")
    }
}

#[async_trait]
impl ObjectStore for Client {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let path = location.clone();
        let put = move |objects: &mut Objects| objects.put(&path, payload.clone(), options.clone());
        self.request(Some(location), put).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let PutMultipartOptions { tags, attributes, extensions } = options;
        let options = PutOptions { tags, attributes, extensions, ..PutOptions::default() };
        let (client, location) = (self.clone(), location.clone());
        Ok(Box::new(Upload { client, location, options, parts: Vec::new() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let path = location.clone();
        let get =
            move |objects: &mut Objects| at_once(objects.kept().get_opts(&path, options.clone()));
        self.request(Some(location), get).await
    }

    fn delete_stream(&self, locations: Parts<Path>) -> Parts<Path> {
        let client = self.clone();
        Box::pin(locations.then(move |location| {
            let client = client.clone();
            async move {
                let location = location?;
                let path = location.clone();
                let delete = move |objects: &mut Objects| objects.delete(&path);
                client.request(Some(&location), delete).await?;
                Ok(location)
            }
        }))
    }

    fn list(&self, prefix: Option<&Path>) -> Parts<ObjectMeta> {
        let under = prefix.cloned();
        let list = move |objects: &mut Objects| {
            at_once(objects.kept().list(under.as_ref()).collect::<Result<Vec<_>>>())
        };
        Box::pin(Listed::Waits(self.request(prefix, list)))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let under = prefix.cloned();
        let list = move |objects: &mut Objects| {
            at_once(objects.kept().list_with_delimiter(under.as_ref()))
        };
        self.request(prefix, list).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (source, target) = (from.clone(), to.clone());
        let copy = move |objects: &mut Objects| {
            at_once(objects.kept().copy_opts(&source, &target, options.clone()))
        };
        self.request(Some(to), copy).await
    }
}

/// An upload in parts, which becomes an object at its end.
#[derive(Debug)]
struct Upload {
    client: Client,
    location: Path,
    options: PutOptions,
    parts: Vec<PutPayload>,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        self.parts.push(part);
        Box::pin(async { Ok(()) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let all = self.parts.drain(..).flatten().collect();
        self.client.put_opts(&self.location, all, self.options.clone()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.parts.clear();
        Ok(())
    }
}

/// The objects of a list, once it is there.
enum Listed {
    Waits(Waits<Vec<ObjectMeta>>),
    Has(VecDeque<ObjectMeta>),
}

impl Stream for Listed {
    type Item = Result<ObjectMeta>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Self::Waits(list) = &mut *self {
            match ready!(list.as_mut().poll(context)) {
                Ok(objects) => *self = Self::Has(objects.into()),
                Err(error) => {
                    *self = Self::Has(VecDeque::new());
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        let Self::Has(objects) = &mut *self else { return Poll::Pending };
        Poll::Ready(objects.pop_front().map(Ok))
    }
}
