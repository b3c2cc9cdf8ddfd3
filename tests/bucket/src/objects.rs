//! The objects, and the operations of S3 on them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CommonPrefix,
    CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CreateMultipartUploadInput,
    CreateMultipartUploadOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput,
    DeleteObjectsOutput, DeletedObject, ETag, ETagCondition, GetObjectInput, GetObjectOutput,
    HeadObjectInput, HeadObjectOutput, ListObjectsV2Input, ListObjectsV2Output, Metadata, Object,
    PutObjectInput, PutObjectOutput, StreamingBlob, UploadPartInput, UploadPartOutput,
};
use s3s::{Body, S3, S3Request, S3Response, S3Result, s3_error};
use tokio_stream::StreamExt;

use crate::BUCKET;

/// All objects of the bucket; clones are handles of the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects(Arc<Mutex<Stored>>);

#[derive(Debug, Default)]
struct Stored {
    conditions: Conditions,
    /// PUTs so far: an ETag is never given twice.
    puts: u64,
    by_key: BTreeMap<String, Kept>,
    uploads_begun: u64,
    /// Multipart uploads in progress, by their ids.
    uploads: BTreeMap<String, Parts>,
}

#[derive(Clone, Debug)]
struct Kept {
    body: Bytes,
    etag: String,
    since: SystemTime,
    metadata: Option<Metadata>,
}

/// Parts of an upload by their numbers, and the metadata of the object.
type Parts = (BTreeMap<i32, Bytes>, Option<Metadata>);

/// What the server does with the condition of a PUT.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Conditions {
    /// Checks it and writes in one step.
    #[default]
    Atomic,
    /// Ignores it.
    Ignored,
    /// Checks it, and writes later.
    Racing,
    /// Refuses every update.
    Refused,
}

/// Time between check and write of [`Conditions::Racing`].
const RACE: Duration = Duration::from_millis(2);

impl Objects {
    pub(crate) fn keys(&self) -> Vec<String> {
        self.lock().by_key.keys().cloned().collect()
    }

    pub(crate) fn puts(&self) -> u64 {
        self.lock().puts
    }

    pub(crate) fn uploads_begun(&self) -> u64 {
        self.lock().uploads_begun
    }

    pub(crate) fn uploads_open(&self) -> usize {
        self.lock().uploads.len()
    }

    pub(crate) fn insert(&self, key: String, body: Bytes) {
        self.lock().insert(key, body, None);
    }

    /// Takes the objects of another server below a prefix, under another prefix.
    pub(crate) fn copy(&self, other: &Self, from: &str, to: &str) {
        let copied: Vec<_> = {
            let theirs = other.lock();
            let below = theirs.by_key.iter().filter_map(|(key, kept)| {
                let rest = key.strip_prefix(from)?;
                Some((format!("{to}{rest}"), kept.body.clone(), kept.metadata.clone()))
            });
            below.collect()
        };
        let mut own = self.lock();
        for (key, body, metadata) in copied {
            own.insert(key, body, metadata);
        }
    }

    pub(crate) fn set_conditions(&self, conditions: Conditions) {
        self.lock().conditions = conditions;
    }

    /// Does the object at this path of a URL contain a text?
    pub(crate) fn has_text(&self, path: &str, text: &str) -> bool {
        let key = path.strip_prefix(&format!("/{BUCKET}/"));
        let stored = self.lock();
        let kept = key.and_then(|key| stored.by_key.get(key));
        kept.is_some_and(|kept| kept.body.windows(text.len()).any(|part| part == text.as_bytes()))
    }

    /// Flips a bit in the middle of an object; false if there is none of this key.
    pub(crate) fn damage(&self, key: &str) -> bool {
        let mut stored = self.lock();
        let Some(kept) = stored.by_key.get_mut(key) else { return false };
        let mut body = kept.body.to_vec();
        let middle = body.len() / 2;
        body.get_mut(middle).into_iter().for_each(|byte| *byte ^= 0x40);
        kept.body = body.into();
        true
    }

    /// Stores an object under its conditions; returns its ETag.
    async fn put(
        &self,
        key: String,
        (body, metadata): (Bytes, Option<Metadata>),
        must_be_new: bool,
        must_match: Option<ETagCondition>,
    ) -> S3Result<ETag> {
        let conditions = self.lock().conditions;
        if conditions == Conditions::Racing {
            self.lock().check(&key, must_be_new, must_match.as_ref())?;
            tokio::time::sleep(RACE).await;
        }
        if conditions == Conditions::Refused && must_match.is_some() {
            return Err(s3_error!(PreconditionFailed));
        }
        let mut stored = self.lock();
        if conditions == Conditions::Atomic {
            stored.check(&key, must_be_new, must_match.as_ref())?;
        }
        Ok(ETag::Strong(stored.insert(key, body, metadata)))
    }

    fn get(&self, key: &str) -> S3Result<Kept> {
        self.lock().by_key.get(key).cloned().ok_or_else(|| s3_error!(NoSuchKey))
    }

    fn lock(&self) -> MutexGuard<'_, Stored> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stored {
    /// Stores an object; returns its ETag.
    fn insert(&mut self, key: String, body: Bytes, metadata: Option<Metadata>) -> String {
        self.puts += 1;
        let etag = format!("{:016x}", self.puts);
        let kept = Kept { body, etag: etag.clone(), since: SystemTime::now(), metadata };
        self.by_key.insert(key, kept);
        etag
    }

    /// Checks the conditions of a PUT: an object that must not be there, or has a known ETag.
    fn check(
        &self,
        key: &str,
        must_be_new: bool,
        must_match: Option<&ETagCondition>,
    ) -> S3Result<()> {
        let is_met = match (self.by_key.get(key), must_match) {
            (Some(_), _) if must_be_new => false,
            (Some(kept), Some(ETagCondition::ETag(etag))) => etag.value() == kept.etag,
            (None, Some(_)) => return Err(s3_error!(NoSuchKey)),
            (_, Some(ETagCondition::Any) | None) => true,
        };
        if is_met { Ok(()) } else { Err(s3_error!(PreconditionFailed)) }
    }
}

fn of_bucket(name: &str) -> S3Result<()> {
    if name == BUCKET { Ok(()) } else { Err(s3_error!(NoSuchBucket)) }
}

async fn whole(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let mut bytes = BytesMut::new();
    if let Some(mut body) = body {
        while let Some(part) = body.next().await {
            bytes.extend_from_slice(&part.map_err(|_| s3_error!(IncompleteBody))?);
        }
    }
    Ok(bytes.freeze())
}

#[async_trait]
impl S3 for Objects {
    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let input = request.input;
        of_bucket(&input.bucket)?;
        let object = (whole(input.body).await?, input.metadata);
        let must_be_new = input.if_none_match.is_some();
        let e_tag = Some(self.put(input.key, object, must_be_new, input.if_match).await?);
        Ok(S3Response::new(PutObjectOutput { e_tag, ..Default::default() }))
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        of_bucket(&request.input.bucket)?;
        let Kept { body, etag, since, metadata } = self.get(&request.input.key)?;
        let whole = body.len() as u64;
        let range = request.input.range.map(|range| range.check(whole)).transpose()?;
        let part = range.as_ref().map_or(0..body.len(), |range| {
            let at = |byte| usize::try_from(byte).unwrap_or(body.len());
            at(range.start)..at(range.end)
        });
        let part = body.slice(part);
        let shown = |range: std::ops::Range<u64>| {
            format!("bytes {}-{}/{whole}", range.start, range.end.saturating_sub(1))
        };
        Ok(S3Response::new(GetObjectOutput {
            content_length: i64::try_from(part.len()).ok(),
            content_range: range.map(shown),
            body: Some(StreamingBlob::from(Body::from(part))),
            e_tag: Some(ETag::Strong(etag)),
            last_modified: Some(since.into()),
            metadata,
            ..Default::default()
        }))
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        of_bucket(&request.input.bucket)?;
        let Kept { body, etag, since, metadata } = self.get(&request.input.key)?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: i64::try_from(body.len()).ok(),
            e_tag: Some(ETag::Strong(etag)),
            last_modified: Some(since.into()),
            metadata,
            ..Default::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let input = request.input;
        of_bucket(&input.bucket)?;
        let mut stored = self.lock();
        stored.puts += 1;
        stored.uploads_begun += 1;
        let id = format!("upload-{}", stored.puts);
        stored.uploads.insert(id.clone(), (BTreeMap::new(), input.metadata));
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            ..Default::default()
        }))
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let input = request.input;
        of_bucket(&input.bucket)?;
        let body = whole(input.body).await?;
        let mut stored = self.lock();
        let upload = stored.uploads.get_mut(&input.upload_id);
        let (parts, _) = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        parts.insert(input.part_number, body);
        let e_tag = Some(ETag::Strong(format!("part-{}", input.part_number)));
        Ok(S3Response::new(UploadPartOutput { e_tag, ..Default::default() }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = request.input;
        of_bucket(&input.bucket)?;
        let upload = self.lock().uploads.remove(&input.upload_id);
        let (parts, metadata) = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        let body: Vec<u8> = parts.into_values().flatten().collect();
        let object = (body.into(), metadata);
        let must_be_new = input.if_none_match.is_some();
        let e_tag = Some(self.put(input.key.clone(), object, must_be_new, input.if_match).await?);
        let (bucket, key) = (Some(input.bucket), Some(input.key));
        let output = CompleteMultipartUploadOutput { bucket, key, e_tag, ..Default::default() };
        Ok(S3Response::new(output))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.lock().uploads.remove(&request.input.upload_id);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        of_bucket(&request.input.bucket)?;
        self.lock().by_key.remove(&request.input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        of_bucket(&request.input.bucket)?;
        let mut stored = self.lock();
        let deleted = request.input.delete.objects.into_iter().map(|object| {
            stored.by_key.remove(&object.key);
            DeletedObject { key: Some(object.key), ..DeletedObject::default() }
        });
        let deleted = Some(deleted.collect());
        Ok(S3Response::new(DeleteObjectsOutput { deleted, ..Default::default() }))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        of_bucket(&input.bucket)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let after = input.continuation_token.or(input.start_after).unwrap_or_default();
        let keys_max = input.max_keys.and_then(|max| usize::try_from(max).ok()).unwrap_or(1_000);
        let stored = self.lock();
        let of_prefix = stored.by_key.range(prefix.clone()..);
        let of_prefix = of_prefix.take_while(|(key, _)| key.starts_with(&prefix));
        let (mut contents, mut folders, mut last) = (Vec::new(), Vec::new(), String::new());
        let mut has_more = false;
        for (key, kept) in of_prefix {
            let folder = input.delimiter.as_deref().and_then(|delimiter| {
                let end = key[prefix.len()..].find(delimiter)? + prefix.len() + delimiter.len();
                Some(key[..end].to_string())
            });
            let name = folder.as_ref().unwrap_or(key);
            if *name <= after || *name == last {
                continue;
            }
            has_more = contents.len() + folders.len() == keys_max;
            if has_more {
                break;
            }
            last.clone_from(name);
            match folder {
                Some(folder) => folders.push(CommonPrefix { prefix: Some(folder) }),
                None => contents.push(Object {
                    key: Some(key.clone()),
                    size: i64::try_from(kept.body.len()).ok(),
                    e_tag: Some(ETag::Strong(kept.etag.clone())),
                    last_modified: Some(kept.since.into()),
                    ..Object::default()
                }),
            }
        }
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: input.prefix,
            key_count: i32::try_from(contents.len() + folders.len()).ok(),
            is_truncated: Some(has_more),
            next_continuation_token: has_more.then_some(last),
            contents: Some(contents),
            common_prefixes: Some(folders),
            ..Default::default()
        }))
    }
}
