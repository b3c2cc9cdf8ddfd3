//! The objects, and the operations of S3 on them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use s3s::dto::{
    DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ETag, ETagCondition, GetObjectInput,
    GetObjectOutput, ListObjectsV2Input, ListObjectsV2Output, Object, PutObjectInput,
    PutObjectOutput, StreamingBlob,
};
use s3s::{Body, S3, S3Request, S3Response, S3Result, s3_error};
use tokio_stream::StreamExt;

use crate::BUCKET;

/// All objects of the bucket; clones are handles of the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Objects(Arc<Mutex<Stored>>);

#[derive(Debug, Default)]
struct Stored {
    /// PUTs so far: an ETag is never given twice.
    puts: u64,
    by_key: BTreeMap<String, Kept>,
}

#[derive(Clone, Debug)]
struct Kept {
    body: Bytes,
    etag: String,
    since: SystemTime,
}

impl Objects {
    pub(crate) fn keys(&self) -> Vec<String> {
        self.lock().by_key.keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Stored> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stored {
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
        let PutObjectInput { bucket, key, body, if_none_match, if_match, .. } = request.input;
        of_bucket(&bucket)?;
        let body = whole(body).await?;
        let mut stored = self.lock();
        stored.check(&key, if_none_match.is_some(), if_match.as_ref())?;
        stored.puts += 1;
        let etag = format!("{:016x}", stored.puts);
        let kept = Kept { body, etag: etag.clone(), since: SystemTime::now() };
        stored.by_key.insert(key, kept);
        let e_tag = Some(ETag::Strong(etag));
        Ok(S3Response::new(PutObjectOutput { e_tag, ..Default::default() }))
    }

    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        of_bucket(&request.input.bucket)?;
        let kept = self.lock().by_key.get(&request.input.key).cloned();
        let Kept { body, etag, since } = kept.ok_or_else(|| s3_error!(NoSuchKey))?;
        Ok(S3Response::new(GetObjectOutput {
            content_length: i64::try_from(body.len()).ok(),
            body: Some(StreamingBlob::from(Body::from(body))),
            e_tag: Some(ETag::Strong(etag)),
            last_modified: Some(since.into()),
            ..Default::default()
        }))
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
        let mut of_prefix = stored.by_key.range(prefix.clone()..);
        let of_prefix = of_prefix
            .by_ref()
            .take_while(|(key, _)| key.starts_with(&prefix))
            .filter(|(key, _)| **key > after);
        let mut contents: Vec<Object> = of_prefix
            .take(keys_max.saturating_add(1))
            .map(|(key, kept)| Object {
                key: Some(key.clone()),
                size: i64::try_from(kept.body.len()).ok(),
                e_tag: Some(ETag::Strong(kept.etag.clone())),
                last_modified: Some(kept.since.into()),
                ..Object::default()
            })
            .collect();
        let has_more = contents.len() > keys_max;
        contents.truncate(keys_max);
        let last = contents.last().and_then(|object| object.key.clone());
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: input.prefix,
            key_count: i32::try_from(contents.len()).ok(),
            is_truncated: Some(has_more),
            next_continuation_token: last.filter(|_| has_more),
            contents: Some(contents),
            ..Default::default()
        }))
    }
}
