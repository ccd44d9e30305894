"""The experiments of deep weight factorization."""
