//! Promises of a stream, each one generic over the data path, as tests over one data path.

/// Makes a test of every `noun::promise` beside the module that it is used in, over `$ends`.
macro_rules! promises {
    (over $ends:ty: $($noun:ident::$promise:ident),* $(,)?) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() -> anyhow::Result<()> {
            if let Some(why) = <$ends as crate::support::ends::Ends>::missing() {
                crate::support::skip(&why);
                return Ok(());
            }
            let body = super::$noun::$promise::<$ends>(rdpipe::StreamConfig::default());
            crate::support::waiting::within(crate::support::waiting::generous(), stringify!($promise), body).await
        }
    )* };
}
