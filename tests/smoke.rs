use rdpipe::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
#[tokio::test]
async fn smoke() {
    let key = Key::generate().unwrap();
    let config = StreamConfig::default();
    let mut l = Listener::bind(
        "127.0.0.1:0".parse().unwrap(),
        key.key().clone(),
        config.clone(),
    )
    .unwrap();
    let port = l.local_addr().port();
    let k = key.key().clone();
    let t = tokio::spawn(async move {
        let mut s = l.accept().await.unwrap();
        let mut v = vec![];
        s.read_to_end(&mut v).await.unwrap();
        s.confirm().unwrap();
        s.write_all(b"yes").await.unwrap();
        s.shutdown().await.unwrap();
        v
    });
    let mut s = connect("127.0.0.1", port, &k, &config).await.unwrap();
    let data: Vec<u8> = (0..10_000_000u32).map(|i| (i % 251) as u8).collect();
    s.write_all(&data).await.unwrap();
    s.finish().await.unwrap();
    let mut r = String::new();
    s.read_to_string(&mut r).await.unwrap();
    assert_eq!(r, "yes");
    assert!(t.await.unwrap() == data);
    println!("{:?}", s);
    s.close().await;
}
