# Gathers from a vector by random indices, small (fits the second cache) or large.
size <- if (commandArgs(TRUE)[1] == "small") 4096L else 33554432L
# The product is no compact sequence.
data <- seq_len(size) * 1.5
set.seed(7)
places <- sample.int(size, 65536L, replace = TRUE)
total <- 0
begun <- proc.time()[["elapsed"]]
for (step in 1:1500) {
  places <- (places + 7919L * step) %% size + 1L
  total <- total + sum(data[places]) %% 1000
}
took <- proc.time()[["elapsed"]] - begun
cat(sprintf("sum %.0f\nop_ns %.4f\nphase_s %.4f\n", total, took / 65536 / 1500 * 1e9, took))
