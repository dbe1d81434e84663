# Fits and sorts in R, which computes on one CPU beside its BLAS.
set.seed(7)
x <- matrix(rnorm(400000 * 8), ncol = 8)
y <- x %*% (1:8) + rnorm(400000)
for (i in 1:4) fit <- lm.fit(x, y)
print(round(coef(fit), 1))
print(head(order(x[, 1]), 5))
s <- paste0("k", sample.int(200000L))
print(length(unique(substr(s, 1, 4))))
