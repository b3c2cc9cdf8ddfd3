//! Compiles the `.proto` files, in Rust, so that a fresh machine needs no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["memtape/v1/memtape.proto"], ["proto"])?;
    println!("cargo:rerun-if-changed=proto");
    tonic_prost_build::configure()
        .bytes(".memtape.v1.UploadChunk.data")
        .compile_fds(descriptors)?;
    Ok(())
}
