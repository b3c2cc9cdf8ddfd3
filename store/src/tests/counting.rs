//! Requests to a bucket are counted as its server sees them.

use memtape_bucket::{BUCKET, Fault, Server};
use memtape_core::traffic::RequestCounts;
use object_store::path::Path;
use object_store::{MultipartUpload as _, ObjectStoreExt as _, PutMode, PutPayload};
use tokio_stream::StreamExt as _;

use crate::bucket::Bucket;

fn counts(puts: u64, lists: u64, gets: u64, deletes: u64) -> RequestCounts {
    RequestCounts { puts, lists, gets, deletes }
}

#[tokio::test]
async fn each_request_is_counted_by_its_kind() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = Server::start().await;
    let url = format!("s3://{BUCKET}/cluster");
    let bucket = Bucket::with_few_retries(&url, server.settings("a")).unwrap();
    let (objects, path) = (&bucket.objects, Path::from("cluster/one"));
    let body = || PutPayload::from_static(b"0123456789");
    objects.put(&path, body()).await.unwrap();
    // Refused, and charged.
    objects.put_opts(&path, body(), PutMode::Create.into()).await.unwrap_err();
    assert_eq!(bucket.requests().unwrap().counts(), counts(2, 0, 0, 0));
    objects.get(&path).await.unwrap().bytes().await.unwrap();
    objects.head(&path).await.unwrap();
    objects.head(&Path::from("cluster/none")).await.unwrap_err();
    // Near each other: one request.
    assert_eq!(objects.get_ranges(&path, &[0..1, 2..3]).await.unwrap().len(), 2);
    assert_eq!(bucket.requests().unwrap().counts(), counts(2, 0, 4, 0));
    assert_eq!(objects.list(None).collect::<Vec<_>>().await.len(), 1);
    objects.list_with_delimiter(None).await.unwrap();
    assert_eq!(bucket.requests().unwrap().counts(), counts(2, 2, 4, 0));
    let paths = tokio_stream::iter([Ok(path.clone()), Ok(Path::from("cluster/two"))]);
    assert_eq!(objects.delete_stream(Box::pin(paths)).collect::<Vec<_>>().await.len(), 2);
    assert_eq!(bucket.requests().unwrap().counts(), counts(2, 2, 4, 1));
    assert_eq!(server.requests(), bucket.requests().unwrap().counts().all(), "what the server saw");
    // Repeated by the client.
    server.fail_next(&[Fault::Unavailable; 2]);
    objects.put(&path, body()).await.unwrap();
    assert_eq!(bucket.requests().unwrap().counts(), counts(5, 2, 4, 1));
    let mut upload = objects.put_multipart(&path).await.unwrap();
    upload.put_part(body()).await.unwrap();
    upload.complete().await.unwrap();
    objects.put_multipart(&path).await.unwrap().abort().await.unwrap();
    assert_eq!(bucket.requests().unwrap().counts(), counts(9, 2, 4, 2));
    assert_eq!(server.requests(), bucket.requests().unwrap().counts().all());
}

#[tokio::test]
async fn each_page_of_a_list_is_a_request() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = Server::start().await;
    let url = format!("s3://{BUCKET}/cluster");
    let bucket = Bucket::with_few_retries(&url, server.settings("a")).unwrap();
    (0..2001).for_each(|number| server.put(&format!("cluster/{number}"), ""));
    assert_eq!(bucket.objects.list(None).collect::<Vec<_>>().await.len(), 2001);
    assert_eq!(bucket.requests().unwrap().counts(), counts(0, 3, 0, 0));
}
