"""The inter-sentence gate (Kuang and Xiong 2018) and the preceding sentences that it reads."""
