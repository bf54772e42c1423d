//! Promises of a stream, each one generic over the data path, as tests over one data path.

/// Makes a test of every `noun::promise` in the module `$of` of the test's crate, over `$ends`.
macro_rules! promises {
    ($of:ident over $ends:ty: $($noun:ident::$promise:ident),* $(,)?) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() -> anyhow::Result<()> {
            if let Some(why) = <$ends as crate::common::ends::Ends>::missing() {
                crate::common::skip(&why);
                return Ok(());
            }
            let body = crate::$of::$noun::$promise::<$ends>(rdpipe::StreamConfig::default());
            crate::common::limit::within(crate::common::limit::generous(), stringify!($promise), body).await
        }
    )* };
}
